"""The paper's Algorithms 1–3, line by line: the reference for the values of our networks and for their speed.

Departures, none of which changes a value: `rearrange` is spelled out, without einops; the two halves of a layer are
one entry of `layers`, as the pseudocode's loop reads them; arguments that it accepts and does not use (`mlp_dim`, the
`dropout` of FeedForward) are left out; `step_size` and `lambd` can be set from outside; CRATE is called PaperCRATE.
The modules carry the names of the authors' checkpoints, so that `state_dict` is in their layout.
"""

import torch
from torch import nn


def pair(t):
    return t if isinstance(t, tuple) else (t, t)


class Rearrange(nn.Module):
    """'b c (h p1) (w p2) -> b (h w) (p1 p2 c)'."""

    def __init__(self, patch_height, patch_width):
        super().__init__()
        self.p1, self.p2 = patch_height, patch_width

    def forward(self, img):
        b, c, height, width = img.shape
        h, w = height // self.p1, width // self.p2
        x = img.reshape(b, c, h, self.p1, w, self.p2)
        return x.permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, self.p1 * self.p2 * c)


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x):
        return self.fn(self.norm(x))


class FeedForward(nn.Module):
    def __init__(self, dim, step_size=0.1, lambd=0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.Tensor(dim, dim))
        nn.init.kaiming_uniform_(self.weight)
        self.step_size = step_size
        self.lambd = lambd

    def forward(self, x):
        x1 = nn.functional.linear(x, self.weight, bias=None)
        grad_1 = nn.functional.linear(x1, self.weight.t(), bias=None)
        grad_2 = nn.functional.linear(x, self.weight.t(), bias=None)
        grad_update = self.step_size * (grad_2 - grad_1) - self.step_size * self.lambd
        return nn.functional.relu(x + grad_update)


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        project_out = not (heads == 1 and dim_head == dim)
        self.heads = heads
        self.scale = dim_head**-0.5
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.qkv = nn.Linear(dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout)) if project_out else nn.Identity()

    def forward(self, x):
        w = self.qkv(x).unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)  # 'b n (h d) -> b h n d'
        dots = torch.matmul(w, w.transpose(-1, -2)) * self.scale
        attn = self.attend(dots)
        attn = self.dropout(attn)
        out = torch.matmul(attn, w)
        out = out.permute(0, 2, 1, 3).flatten(-2)  # 'b h n d -> b n (h d)'
        return self.to_out(out)


class Transformer(nn.Module):
    def __init__(self, dim, depth, heads, dim_head, dropout=0.0, step_size=0.1, lambd=0.1):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            attention = PreNorm(dim, Attention(dim, heads, dim_head, dropout))
            self.layers.append(nn.ModuleList([attention, PreNorm(dim, FeedForward(dim, step_size, lambd))]))

    def forward(self, x):
        for attn, ff in self.layers:
            x_ = attn(x) + x
            x = ff(x_)
        return x


class PaperCRATE(nn.Module):
    def __init__(
        self,
        image_size,
        patch_size,
        num_classes,
        dim,
        depth,
        heads,
        pool="cls",
        channels=3,
        dim_head=64,
        dropout=0.0,
        emb_dropout=0.0,
        step_size=0.1,
        lambd=0.1,
    ):
        super().__init__()
        image_height, image_width = pair(image_size)
        patch_height, patch_width = pair(patch_size)
        num_patches = (image_height // patch_height) * (image_width // patch_width)
        patch_dim = channels * patch_height * patch_width
        self.to_patch_embedding = nn.Sequential(
            Rearrange(patch_height, patch_width), nn.LayerNorm(patch_dim), nn.Linear(patch_dim, dim), nn.LayerNorm(dim)
        )
        self.pos_embedding = nn.Parameter(torch.randn(1, num_patches + 1, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.dropout = nn.Dropout(emb_dropout)
        self.transformer = Transformer(dim, depth, heads, dim_head, dropout, step_size, lambd)
        self.pool = pool
        self.to_latent = nn.Identity()
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    def forward(self, img):
        x = self.to_patch_embedding(img)
        b, n, _ = x.shape
        cls_tokens = self.cls_token.repeat(b, 1, 1)
        x = torch.cat((cls_tokens, x), dim=1)
        x += self.pos_embedding[:, : (n + 1)]
        x = self.dropout(x)
        x = self.transformer(x)
        x = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
        x = self.to_latent(x)
        return self.mlp_head(x)
