"""From pictures to patches, normalised and embedded linearly; the network adds the class token and the positions.

A patch is flattened in the order (row, column, channel) and passes LayerNorm, a linear map and LayerNorm again, as in
the paper's Algorithm 1.
"""

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv, register_notrace_function
from torch import Tensor, nn


@register_notrace_function
def require_images(images: Tensor, in_chans: int) -> None:
    if images.dim() != 4 or images.shape[1] != in_chans:
        raise ValueError(f"images must have axes (batch, {in_chans}, height, width), got shape {list(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(f"images must be floating-point numbers, got {images.dtype}: scale and normalise them first")


@register_notrace_function
def require_image_size(images: Tensor, height: int, width: int) -> None:
    if images.shape[-2] != height or images.shape[-1] != width:
        raise ValueError(
            f"images of {images.shape[-2]} x {images.shape[-1]} pixels, but the model takes {height} x {width}: "
            "use set_input_size, or build it with dynamic_img_size=True"
        )


@register_notrace_function
def require_whole_patches(images: Tensor, height: int, width: int) -> None:
    if images.shape[-2] % height != 0 or images.shape[-1] % width != 0:
        raise ValueError(
            f"images of {images.shape[-2]} x {images.shape[-1]} pixels are not divisible by patch_size "
            f"{height} x {width}"
        )


# Symbolic tracing takes the checks as they are, without looking at a picture's size.
for _check in (require_images, require_image_size, require_whole_patches):
    torch.fx.wrap(_check.__name__)


def cut(
    images: Tensor, in_chans: int, img_size: tuple[int, int], patch_size: tuple[int, int], dynamic_img_size: bool
) -> Tensor:
    """Images (b, c, H, W), if they are such as these sizes ask for, by patches: (b, c, h, row, w, column)."""
    require_images(images, in_chans)
    if dynamic_img_size:
        require_whole_patches(images, patch_size[0], patch_size[1])
    else:
        require_image_size(images, img_size[0], img_size[1])
    return images.unflatten(-1, [-1, patch_size[1]]).unflatten(-3, [-1, patch_size[0]])


def with_empty_first(patches: Tensor) -> Tensor:
    return F.pad(patches, [0, 0, 1, 0])


def with_class_token(tokens: Tensor, constant: Tensor) -> Tensor:
    """Tokens (b, n, d), the first empty, and the constant (1, n, d): class token and positions → Z¹."""
    there = torch.arange(tokens.shape[1], device=tokens.device)[:, None] > 0
    return torch.where(there, tokens + constant, constant)


class PatchEmbed(nn.Module):
    """Images (b, c, H, W) → embedded patches (b, 1 + h·w, d), with an empty one in the class token's place.

    All that follows is then row by row: compiled, no tensor of tokens is copied to make room for the class token.
    """

    def __init__(
        self,
        img_size: tuple[int, int],
        patch_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        norm_eps: float,
        dynamic_img_size: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.img_size, self.patch_size, self.in_chans = img_size, patch_size, in_chans
        self.dynamic_img_size, self.norm_eps = dynamic_img_size, norm_eps
        self.grid_size = _grid(img_size, patch_size)
        patch_dim = patch_size[0] * patch_size[1] * in_chans
        self.norm_patch = nn.LayerNorm(patch_dim, eps=norm_eps, **dd)
        self.proj = nn.Linear(patch_dim, embed_dim, **dd)
        self.norm_token = nn.LayerNorm(embed_dim, eps=norm_eps, **dd)

    def grid_of(self, images: Tensor) -> list[int]:
        """How many patches high and wide."""
        return [images.shape[-2] // self.patch_size[0], images.shape[-1] // self.patch_size[1]]

    def forward(self, images: Tensor) -> Tensor:
        patches = cut(images, self.in_chans, self.img_size, self.patch_size, self.dynamic_img_size)
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(-3).flatten(1, 2)  # (b, h·w, row·column·c)
        embedded = self._embed(with_empty_first(patches))
        return self.norm_token(embedded).to(embedded.dtype)  # autocast's LayerNorm gives float32, which doubles Z¹

    def _embed(self, patches: Tensor) -> Tensor:
        """`proj(norm_patch(patches))`, with the norm's scale and shift taken into the product.

        Then their gradients come from the weight's, and none is needed for the patches themselves.
        """
        norm, proj = self.norm_patch, self.proj
        standard = F.layer_norm(patches, [patches.shape[-1]], None, None, self.norm_eps)
        return F.linear(standard, proj.weight * norm.weight, proj.bias + (proj.weight * norm.bias).sum(-1))

    def set_input_size(self, img_size: tuple[int, int] | None, patch_size: tuple[int, int] | None) -> None:
        """Take pictures of another size, or patches of another size by resampling the embedding's filters."""
        img_size, patch_size = img_size or self.img_size, patch_size or self.patch_size
        grid_size = _grid(img_size, patch_size)
        if patch_size != self.patch_size:
            filters, bias = self.filters()
            self._set_filters(resample_patch_embed(filters, list(patch_size)), bias)
        self.img_size, self.patch_size, self.grid_size = img_size, patch_size, grid_size

    def set_in_chans(self, in_chans: int) -> None:
        """Take pictures with other channels; with one, a grey picture gives what it gave as three equal channels."""
        if in_chans < 1 or (self.in_chans not in (1, 3) and in_chans != self.in_chans):
            raise ValueError(f"an embedding of {self.in_chans} channels cannot be made one of {in_chans}")
        filters, bias = self.filters()
        if self.in_chans == 1:
            filters = filters.expand(-1, in_chans, -1, -1) / in_chans
        self._set_filters(adapt_input_conv(in_chans, filters) if self.in_chans == 3 else filters, bias)
        self.in_chans = in_chans

    def filters(self) -> tuple[Tensor, Tensor]:
        """The linear map as filters (d, c, row, column) and a bias, with `norm_patch`'s scale and shift folded in."""
        weight, shift = self.proj.weight.detach(), self.norm_patch.bias.detach()
        filters = (weight * self.norm_patch.weight.detach()).unflatten(1, (*self.patch_size, self.in_chans))
        return filters.permute(0, 3, 1, 2), self.proj.bias.detach() + weight @ shift

    def _set_filters(self, filters: Tensor, bias: Tensor) -> None:
        weight = filters.permute(0, 2, 3, 1).flatten(1).contiguous()
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        norm = nn.LayerNorm(weight.shape[1], eps=self.norm_patch.eps, **like)
        proj = nn.Linear(weight.shape[1], weight.shape[0], **like)
        with torch.no_grad():
            proj.weight.copy_(weight)
            proj.bias.copy_(bias)
        for new, old in ((norm, self.norm_patch), (proj, self.proj)):
            new.weight.requires_grad, new.bias.requires_grad = old.weight.requires_grad, old.bias.requires_grad
        self.norm_patch, self.proj = norm.train(self.training), proj.train(self.training)


def _grid(img_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    for pixels, patch in zip(img_size, patch_size, strict=True):
        if patch < 1 or pixels < 1 or pixels % patch:
            raise ValueError(f"img_size {pixels} is not divisible by patch_size {patch}")
    return img_size[0] // patch_size[0], img_size[1] // patch_size[1]
