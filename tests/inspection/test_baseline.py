import numpy as np
import pytest
import timm
import torch

from opencrate.inspection.baseline import token_table
from opencrate.measures.geometry import effective_rank

from ..networks import small


@torch.no_grad()
def test_a_vits_tokens_against_its_own_forward_pass():
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3).double().eval()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    rows = token_table(vit, images.split(2))
    tokens = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    for block, row in zip(vit.blocks, rows, strict=True):
        tokens = block(tokens)
        n, d = tokens.shape[1:]
        rates = [0.5 * np.linalg.slogdet(np.eye(n) + d / (n * 0.01) * Z @ Z.T)[1] for Z in tokens.numpy()]
        assert row["R"] == pytest.approx(np.mean(rates), rel=1e-9)
        assert row["rank"] == pytest.approx(effective_rank(tokens).mean().item(), rel=1e-9)
        assert row["nonzero"] == 1
    assert [row["layer"] for row in rows] == [1, 2]


@torch.no_grad()
def test_a_crates_tokens_are_those_of_its_layers():
    model, images = small(dtype=torch.float64), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    Z = model.forward_features(images)
    row = token_table(model, images)[-1]
    assert row["nonzero"] == pytest.approx((Z != 0).double().mean().item())
    assert row["rank"] == pytest.approx(effective_rank(Z).mean().item())


def test_a_network_without_tokens_is_refused():
    with pytest.raises(ValueError, match="Linear does not hand out its tokens"):
        token_table(torch.nn.Linear(2, 2), torch.zeros(1, 2))
