"""timm's promises beyond its own suite (`make timm-suite`)."""

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.optim import param_groups_layer_decay, param_groups_weight_decay

from opencrate import CRATE

from ..networks import small

NAMES = [
    *(f"crate_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
    *(f"crate_{size}_patch8_64" for size in ("tiny", "small", "base")),
    *(f"crate_{size}_patch4_32" for size in ("tiny", "small", "base")),
]


def test_names_are_listed():
    assert sorted(timm.list_models("crate*")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_created_by_name(name):
    model = timm.create_model(name, num_classes=7, device="meta")
    assert isinstance(model, CRATE)
    assert model.num_classes == 7
    pixels = int(name.rsplit("_", 1)[1])
    assert model.default_cfg["input_size"] == (3, pixels, pixels)
    assert model.patch_embed.img_size == (pixels, pixels)
    data = timm.data.resolve_data_config(model=model)
    assert data["input_size"] == (3, pixels, pixels)


def test_intermediates():
    model, images = small(), torch.randn(2, 3, 16, 16)
    final, maps = model.forward_intermediates(images)
    assert all(features.is_contiguous() for features in maps)
    assert torch.equal(final, model.forward_features(images))
    assert [tuple(features.shape) for features in maps] == [(2, 24, 4, 4)] * 3

    Z = model.embed(images)
    layers = [Z := block(Z) for block in model.blocks]
    torch.testing.assert_close(maps[1], layers[1][:, 1:].transpose(1, 2).reshape(2, 24, 4, 4))

    tokens = model.forward_intermediates(images, indices=2, output_fmt="NLC", intermediates_only=True)
    assert [torch.equal(a, b[:, 1:]) for a, b in zip(tokens, layers[1:], strict=True)] == [True, True]

    pairs = model.forward_intermediates(
        images, indices=[0, -1], return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
    )
    for (features, prefix), layer in zip(pairs, (layers[0], layers[2]), strict=True):
        torch.testing.assert_close(torch.cat([prefix, features], 1), model.norm(layer))

    stopped, (only,) = model.forward_intermediates(images, indices=[0], stop_early=True, output_fmt="NLC")
    assert torch.equal(stopped, layers[0])
    assert torch.equal(only, layers[0][:, 1:])

    result = model.forward_intermediates(images, return_prefix_tokens=True, output_dict=True)
    assert result.keys() == {"image_intermediates", "image_intermediates_prefix", "image_features"}
    assert torch.equal(result["image_features"], final)
    assert torch.equal(result["image_intermediates_prefix"][2], layers[2][:, :1])
    alone = model.forward_intermediates(images, output_dict=True, intermediates_only=True)
    assert alone.keys() == {"image_intermediates"}

    with pytest.raises(ValueError, match="output_fmt must be 'NCHW' or 'NLC', got 'NHWC'"):
        model.forward_intermediates(images, output_fmt="NHWC")


def test_prune_intermediate_layers():
    model, images = small(), torch.randn(2, 3, 16, 16)
    expected = model.forward_intermediates(images, indices=[0, 1], intermediates_only=True)
    assert model.prune_intermediate_layers([0, 1], prune_norm=True) == [0, 1]
    assert len(model.blocks) == 2
    assert isinstance(model.norm, torch.nn.Identity)
    assert model.num_classes == 0
    for before, after in zip(expected, model.forward_intermediates(images, intermediates_only=True), strict=True):
        assert torch.equal(before, after)
    model.reset_classifier(3, "token")
    assert model(images).shape == (2, 3)


def test_features_only():
    backbone = timm.create_model("crate_tiny_patch4_32", features_only=True, out_indices=(0, 5, 11))
    maps = backbone(torch.randn(1, 3, 32, 32))
    assert [tuple(features.shape) for features in maps] == [(1, 384, 8, 8)] * 3
    assert backbone.feature_info.channels() == [384] * 3
    assert backbone.feature_info.reduction() == [4] * 3


def test_reset_classifier():
    model, images = small(dtype=torch.float64), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    features = model.forward_head(model.forward_features(images), pre_logits=True)
    model.reset_classifier(0)
    assert model.num_classes == 0
    torch.testing.assert_close(model(images), features, rtol=1e-12, atol=1e-12)
    model.reset_classifier(9, "avg")
    assert model.get_classifier().weight.dtype == torch.float64
    assert model.get_classifier() is model.head
    assert model(images).shape == (2, 9)
    pooled = model.norm(model.forward_features(images).mean(1))
    torch.testing.assert_close(model(images), model.head(pooled))
    model.reset_classifier(0, "")
    assert model(images).shape == (2, 17, 24)
    with pytest.raises(ValueError, match="global_pool must be"):
        model.reset_classifier(3, "max")


def test_set_input_size_interpolates_the_positions():
    model = small()
    old = model.pos_embed.detach().clone()
    model.set_input_size(img_size=(24, 16))
    assert model.patch_embed.grid_size == (6, 4)
    assert model.pos_embed.shape == (1, 25, 24)
    assert torch.equal(model.pos_embed[:, 0], old[:, 0])
    expected = resample_abs_pos_embed(old, [6, 4], [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(model.pos_embed.data, expected)
    assert model(torch.randn(2, 3, 24, 16)).shape == (2, 5)
    assert model.config()["img_size"] == [24, 16]
    with pytest.raises(ValueError, match="img_size 17 is not divisible by patch_size 4"):
        model.set_input_size(17)
    assert model.patch_embed.img_size == (24, 16)


def test_what_is_frozen_stays_so_in_another_size():
    model = small()
    frozen = {"pos_embed", "patch_embed.proj.weight", "patch_embed.norm_patch.bias"}
    for name in frozen:
        model.get_parameter(name).requires_grad = False
    model.set_input_size(img_size=32, patch_size=8)
    assert {name for name, weight in model.named_parameters() if not weight.requires_grad} == frozen


def test_set_patch_size_keeps_smooth_pictures():
    """Patches of 8 pixels on a picture of twice the size see the same picture: the embedding is almost the same."""
    model = small()
    coarse = torch.randn(4, 3, 4, 4)
    picture = torch.nn.functional.interpolate(coarse, 16, mode="bilinear")
    larger = torch.nn.functional.interpolate(picture, 32, mode="bilinear")
    with torch.no_grad():
        before = model.patch_embed(picture)
        model.set_input_size(img_size=32, patch_size=8)
        after = model.patch_embed(larger)
    assert model.patch_embed.patch_size == (8, 8)
    assert [entry["reduction"] for entry in model.feature_info] == [8] * 3
    assert torch.nn.functional.cosine_similarity(before, after, dim=-1).min() > 0.99


def test_dynamic_img_size_interpolates_the_positions():
    fixed = small()
    model = CRATE(**{**fixed.config(), "dynamic_img_size": True}).eval()
    model.load_state_dict(fixed.state_dict())
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(images), fixed(images))
    larger = torch.randn(2, 3, 20, 28)
    fixed.set_input_size((20, 28))
    torch.testing.assert_close(model(larger), fixed(larger))
    assert model.forward_intermediates(larger, intermediates_only=True)[0].shape == (2, 24, 5, 7)


def test_gradient_checkpointing_changes_nothing():
    images = torch.randn(2, 3, 16, 16)
    gradients = []
    for enable in (False, True):
        model = small().train()
        model.set_grad_checkpointing(enable)
        model(images).sum().backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(plain, checkpointed) for plain, checkpointed in zip(*gradients, strict=True))


def test_parameter_groups():
    model = small()
    assert model.no_weight_decay() == {"pos_embed", "cls_token"}
    skipped, decayed = param_groups_weight_decay(model, 0.5, no_weight_decay_list=model.no_weight_decay())
    assert (skipped["weight_decay"], decayed["weight_decay"]) == (0.0, 0.5)
    assert any(weight is model.cls_token for weight in skipped["params"])
    assert any(weight is model.blocks[0].compress.operator.UT for weight in decayed["params"])
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {id(weight): group["lr_scale"] for group in groups for weight in group["params"]}
    assert len(scale) == len(list(model.parameters()))
    by_depth = [
        scale[id(weight)] for weight in (model.cls_token, *(block.sparsify.operator.D for block in model.blocks))
    ]
    assert by_depth == sorted(by_depth)
    assert len(set(by_depth)) == 4
    assert scale[id(model.head.weight)] == 1


def test_grey_pictures_with_weights_of_coloured_ones(tmp_path):
    """timm adapts pretrained weights to one channel; ours give a grey picture the logits it had as three channels."""
    colour = timm.create_model("crate_tiny_patch4_32", depth=2, num_classes=1000)
    with torch.no_grad():
        colour.patch_embed.norm_patch.weight.uniform_(0.5, 1.5)
        colour.patch_embed.norm_patch.bias.normal_()
    file = tmp_path / "weights.pth"
    torch.save(colour.state_dict(), file)
    overlay = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}, "depth": 2}
    grey = timm.create_model("crate_tiny_patch4_32", in_chans=1, **overlay)
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(grey.eval()(images), colour.eval()(images.expand(-1, 3, -1, -1)), rtol=0, atol=1e-4)
    larger = timm.create_model("crate_tiny_patch4_32", img_size=64, num_classes=3, **overlay)
    assert larger(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    resampled = timm.create_model("crate_tiny_patch4_32", img_size=64, patch_size=8, **overlay)
    colour.set_input_size(64, patch_size=8)
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(resampled.eval()(images), colour(images), rtol=0, atol=1e-4)


def test_channels_of_the_embedding():
    """A grey network made a coloured one sees three equal channels as it saw the one; other changes are refused."""
    embed, images = small(in_chans=1).patch_embed, torch.randn(2, 1, 16, 16)
    before = embed(images)
    embed.set_in_chans(3)
    torch.testing.assert_close(embed(images.expand(-1, 3, -1, -1)), before, rtol=0, atol=1e-5)
    embed.set_in_chans(5)
    assert embed(torch.randn(2, 5, 16, 16)).shape == (2, 17, 24)
    with pytest.raises(ValueError, match="an embedding of 5 channels cannot be made one of 3"):
        embed.set_in_chans(3)
