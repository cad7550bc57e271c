from itertools import pairwise

import pytest
import timm
import torch

import opencrate
from benchmarks.pseudocode import PaperCRATE
from opencrate import CRATE, trajectory
from opencrate.checkpoints.key_maps import to_authors
from opencrate.operators import softmax_step
from opencrate.speed import training_forms

from ..networks import SMALL, own, small, transcribed
from ..strategies import random


@pytest.mark.parametrize(
    ("size", "parameters"), [("tiny", 6_090_856), ("small", 13_116_328), ("base", 22_796_008), ("large", 77_641_192)]
)
def test_parameter_counts_are_the_papers(size, parameters):
    model = timm.create_model(f"crate_{size}_patch16_224", device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    "variant",
    [
        {"global_pool": "token"},
        {"global_pool": "avg"},
        {"num_heads": 1},
        {"num_heads": 1, "head_dim": 8},
        {"num_heads": 3, "head_dim": 16},
        {"sparsify_args": {"eta": 0.3, "lam": 0.02}},
        {"in_chans": 1},
    ],
    ids=str,
)
def test_logits_and_gradients_are_the_transcriptions(variant):
    model = small(dtype=torch.float64, **variant)
    paper = transcribed(model)
    images, labels = random(6, model.patch_embed.in_chans, 16, 16, seed=1), torch.arange(6) % 5
    ours, theirs = model(images), paper(images)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)

    torch.nn.functional.cross_entropy(ours, labels).backward()
    torch.nn.functional.cross_entropy(theirs, labels).backward()
    gradients = to_authors({name: weight.grad for name, weight in model.named_parameters()})
    expected = dict(paper.named_parameters())
    assert gradients.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(gradients[name], weight.grad, rtol=0, atol=1e-9, msg=name)
        assert weight.grad.abs().max() > 1e-6, f"{name} has no gradient to compare"


def test_initialisation_is_the_papers():
    """The same distributions: the standard deviations of every weight agree within their sampling error."""
    torch.manual_seed(0)
    ours = to_authors(
        CRATE(img_size=32, patch_size=4, embed_dim=192, depth=2, num_heads=3, num_classes=10).state_dict()
    )
    theirs = PaperCRATE(
        image_size=32, patch_size=4, num_classes=10, dim=192, depth=2, heads=3, dim_head=64
    ).state_dict()
    for name, weight in theirs.items():
        spread = weight.std(unbiased=False).item()
        sampling_error = 3 / weight.numel() ** 0.5
        assert ours[name].std(unbiased=False).item() == pytest.approx(spread, rel=sampling_error), name
        assert ours[name].mean().item() == pytest.approx(weight.mean().item(), abs=1.5 * sampling_error * spread), name


def test_trajectory_passes_what_forward_passes():
    model, images = small(), torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        steps = list(trajectory(model, images))
        assert [step.number for step in steps] == [1, 2, 3]
        assert [step.layer for step in steps] == list(model.blocks)
        assert all(torch.equal(step.code, step.Z_next) for step in steps)  # ISTA's code takes the tokens' place
        assert torch.equal(steps[0].Z, model.embed(images))
        for step, after in pairwise(steps):
            assert torch.equal(step.Z_next, after.Z)
        assert torch.equal(model.forward_head(steps[-1].Z_next), model.forward_head(model.forward_features(images)))
        for step, layer in zip(steps, model.blocks, strict=True):
            assert step.Z.shape == step.Z_half.shape == step.Z_next.shape == (2, 17, 24)
            assert step.projections.shape == (2, 4, 17, 6)
            assert step.maps.shape == (2, 4, 17, 17)
            assert (step.Z_next >= 0).all()
            # The maps and projections explain the half-step completely.
            heads = (step.maps @ step.projections).transpose(1, 2).flatten(2)
            torch.testing.assert_close(step.Z + layer.compress.operator.W(heads), step.Z_half, rtol=1e-5, atol=1e-5)
    assert next(trajectory(model, images)).Z_next.requires_grad


def test_operators_without_attention_say_so():
    model = small(compress="gradient_step")
    step = next(trajectory(model, torch.randn(1, 3, 16, 16)))
    with pytest.raises(ValueError, match="gradient_step has no attention maps"):
        _ = step.maps


@pytest.mark.parametrize("compress", own(opencrate.operators.compressions))
@pytest.mark.parametrize("sparsify", own(opencrate.operators.sparsifications))
def test_every_pair_of_operators_makes_a_network(compress, sparsify):
    model = small(compress=compress, sparsify=sparsify).train()
    logits = model(torch.randn(2, 3, 16, 16))
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    assert {"compress": compress, "sparsify": sparsify}.items() <= model.config().items()
    half = model.bfloat16()(torch.randn(2, 3, 16, 16, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


def test_step_moves_the_tokens_as_it_moves_their_layernorm():
    model = small(compress="softmax_step", dtype=torch.float64)
    half = model.blocks[0].compress
    Z = random(2, 17, 24)
    Y = half.norm(Z)
    expected = softmax_step(Y, half.operator.U, scale=6**-0.5) - Y
    torch.testing.assert_close(half(Z), Z + expected)


@pytest.mark.parametrize("fast", [False, True])
def test_gradients_lie_in_memory_as_their_weights_do(fast):
    """Otherwise DDP copies them into its buckets one by one, and warns."""
    model = small().train()
    if fast:
        training_forms(model)
    model(random(2, 3, 16, 16).float()).square().sum().backward()
    strides = {name: (weight.stride(), weight.grad.stride()) for name, weight in model.named_parameters()}
    assert {name: both for name, both in strides.items() if both[0] != both[1]} == {}


def test_config_rebuilds_the_network():
    model = small(
        compress="mixture_step",
        compress_args={"sigma": 2.0},
        sparsify="prox_mm",
        sparsify_args={"eps": 0.3},
        num_heads=2,
    )
    again = CRATE(**model.config())
    again.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again.eval()(images), model(images))
    assert again.config() == model.config()


def test_dropout_and_drop_path_are_for_training_alone():
    images = torch.randn(4, 3, 16, 16)
    for rate in ("drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"):
        model, plain = small(**{rate: 0.5}), small()
        assert torch.equal(model(images), plain(images))
        model.train()
        assert not torch.equal(model(images), model(images)), rate


def test_the_defaults_are_crate_base_without_dropout():
    config = CRATE(device="meta").config()
    assert config == {
        **timm.create_model("crate_base_patch16_224", device="meta").config(),
        **dict.fromkeys(["drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"], 0.0),
        **{"in_chans": 3, "num_classes": 1000, "global_pool": "token", "dynamic_img_size": False},
        **{"compress": "mssa", "sparsify": "ista", "norm": "layernorm", "norm_eps": 1e-5},
    }
    assert config["depth"] == config["num_heads"] == 12


def test_built_on_meta_then_filled():
    model = CRATE(**SMALL, device=torch.device("meta"), dtype=torch.float64)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}
    model.to_empty(device="cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    model.init_weights()
    assert model(random(1, 3, 16, 16)).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"img_size": 225, "patch_size": 16}, "img_size 225 is not divisible by patch_size 16"),
        ({"img_size": (16, 18)}, "img_size 18 is not divisible by patch_size 4"),
        ({"num_heads": 5}, "embed_dim 24 is not divisible by num_heads 5"),
        ({"num_heads": 0}, "num_heads must be a whole number, at least 1, got 0"),
        ({"num_heads": 0, "head_dim": 6}, "num_heads must be a whole number, at least 1, got 0"),
        ({"num_heads": 6.0}, "num_heads must be a whole number, at least 1, got 6.0"),
        ({"head_dim": -6}, "head_dim must be a whole number, at least 1, got -6"),
        ({"embed_dim": 0}, "embed_dim must be a whole number, at least 1, got 0"),
        ({"depth": 0}, "depth must be a whole number, at least 1, got 0"),
        ({"num_classes": -1}, "num_classes must be a whole number, at least 0, got -1"),
        ({"img_size": (16,)}, "img_size must be a whole number or two, got (16,)"),
        ({"img_size": "16"}, "img_size must be a whole number or two, got '16'"),
        ({"attn_drop_rate": 2.0}, "attn_drop_rate must be in [0, 1), got 2.0"),
        ({"norm_eps": -1.0}, "norm_eps must be positive, got -1.0"),
        ({"compress": None}, "a compression is chosen by its registered name, got None"),
        ({"sparsify_args": {"lam": "0.1"}}, "lam must be a finite number, got '0.1'"),
        ({"sparsify_args": {"eta": float("inf")}}, "eta must be a finite number, got inf"),
        ({"sparsify": "ista_unrolled", "sparsify_args": {"steps": 2.5}}, "steps must be a whole number, got 2.5"),
        ({"sparsify_args": [1]}, "the options of ista must be a dictionary, got [1]"),
        ({"global_pool": "max"}, "global_pool must be 'token', 'avg' or '', got 'max'"),
        ({"compress": "mmsa"}, "unknown compression 'mmsa'; did you mean 'mssa'?"),
        ({"sparsify": "prox"}, "unknown sparsification 'prox'"),
        ({"sparsify_args": {"lam": -1.0}}, "lam must not be negative, got -1.0"),
        ({"compress": "mssa_tied", "compress_args": {"eps": 0}}, "eps must be positive, got 0"),
        ({"sparsify_args": {"lambda": 1.0}}, "ista has no option 'lambda'"),
    ],
    ids=str,
)
@pytest.mark.unhooked
def test_bad_arguments_are_one_sentence(arguments, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        CRATE(**{**SMALL, **arguments})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 1, 16, 16), r"images must have axes \(batch, 3, height, width\), got shape \[1, 1, 16, 16\]"),
        (torch.zeros(1, 16, 16, 3), r"images must have axes \(batch, 3, height, width\), got shape \[1, 16, 16, 3\]"),
        (torch.zeros(3, 16, 16), r"images must have axes \(batch, 3, height, width\), got shape \[3, 16, 16\]"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"must be floating-point numbers, got torch\.uint8: scale"),
    ],
    ids=str,
)
def test_what_is_no_batch_of_pictures_is_one_sentence(images, message):
    with pytest.raises(ValueError, match=message):
        small()(images)


def test_trajectory_of_another_network_is_one_sentence():
    with pytest.raises(ValueError, match="trajectory needs a network with `embed` and `layers`, got VisionTransformer"):
        list(trajectory(timm.create_model("test_vit"), torch.zeros(1, 3, 160, 160)))


def test_pictures_of_another_size_are_one_sentence():
    with pytest.raises(ValueError, match="images of 20 x 16 pixels, but the model takes 16 x 16"):
        small()(torch.randn(1, 3, 20, 16))
    with pytest.raises(ValueError, match="images of 18 x 16 pixels are not divisible by patch_size 4 x 4"):
        small(dynamic_img_size=True)(torch.randn(1, 3, 18, 16))


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large"])
def test_the_papers_sizes_give_the_transcriptions_logits(size):
    model = timm.create_model(f"crate_{size}_patch16_224", dtype=torch.float64).eval()
    images = random(2, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), transcribed(model)(images), rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gpu_agrees_with_cpu(dtype):
    model, images = small(dtype=dtype), random(4, 3, 16, 16, dtype=dtype)
    expected = model(images)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(model.cuda()(images.cuda()).cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("half", "operator"),
    [("compress", name) for name in own(opencrate.operators.compressions)]
    + [("sparsify", name) for name in own(opencrate.operators.sparsifications)],
)
def test_gpu_has_the_gradients_of_cpu_with_every_operator(half, operator):
    model, images, found = small(dtype=torch.float64, **{half: operator}), random(4, 3, 16, 16), []
    for device in ("cpu", "cuda"):
        logits = model.to(device)(images.to(device))
        gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        found.append([tensor.cpu() for tensor in (logits, *gradients)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["crate_tiny_patch16_224", "crate_small_patch16_224"])
def test_gpu_training_step_in_bf16(name):
    model = timm.create_model(name, num_classes=10).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 3, 224, 224, device="cuda")).float().square().mean()
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_fast_form_leaves_out_what_the_loss_does_not_see(checkpointing):
    """The last layer is asked for the class token alone: the same logits and gradients as from all tokens."""
    model, images = small(dtype=torch.float64), random(3, 3, 16, 16, seed=2)
    seen = []
    training_forms(model, first_token=True)
    model.blocks[-1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    results = []
    for training in (True, False):
        model.train(training).set_grad_checkpointing(checkpointing and training)
        logits = model(images)
        results.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
    assert seen[0] == 1
    assert seen[-1] == 17
    for short, whole in zip(*results, strict=True):
        torch.testing.assert_close(short, whole, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("arguments", [{"global_pool": "avg"}, {"compress": "softmax_step"}, {"sparsify": "prox_mm"}])
def test_training_computes_all_tokens_where_they_count(arguments):
    model, seen = training_forms(small(**arguments).train(), first_token=True), []
    model.blocks[-1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    model(random(2, 3, 16, 16, seed=2).float())
    assert seen == [17]
