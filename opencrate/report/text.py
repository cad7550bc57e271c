"""The report's texts: what each section is about, and what each term means."""


def _text(words: str) -> str:
    return " ".join(words.split())


READINGS = {
    "paper": "R^c of the tokens after compression, as in the paper's text",
    "official": "R^c of the compression's input with every token at unit length, as in the authors' script",
    "unit": "R^c of the tokens after compression with every token at unit length, so that shorter tokens do not count",
}

ABOUT = {
    "layers": (
        "What changes from layer to layer",
        _text("""Every layer is designed to do two things. It moves the tokens of a picture closer to a few subspaces,
            which lowers the coding rate R^c, and it writes them with few non-zero entries, which lowers the non-zero
            fraction. R^c is roughly the number of nats that the tokens need when each subspace has its own code book.
            “Untrained” is the same network with fresh weights: where its curve looks the same, training is not the
            cause."""),
    ),
    "epochs": (
        "What changed during training",
        "The same two quantities, epoch by epoch.",
    ),
    "audit": (
        "Does each layer do what it was designed for?",
        _text("""A layer takes two half-steps. Compression should lower R^c. It is measured here on tokens of unit
            length, because LayerNorm hides their length from the next half-step. Sparsification should lower the
            LASSO: the error of writing each token as a sum of dictionary atoms, plus λ times the size of the code."""),
    ),
    "subspaces": (
        "The subspaces",
        _text("""Every head has its own subspace. Dark squares off the diagonal mean that two heads use the same
            directions. The coherence is 0 for orthogonal subspaces and 1 for subspaces that share a direction."""),
    ),
    "tokens": (
        "The tokens",
        _text("""To the network a picture is a set of tokens: one for each patch, and one for the class. Each row below
            is a token, each column one of its coordinates."""),
    ),
    "attention": (
        "Attention",
        "Each head moves a token towards the patches that are similar to it in the head's subspace. These are shown.",
    ),
    "patches": (
        "What heads and entries of the code respond to",
        _text("""The patches that lie farthest along a head's main direction, and those where an entry of the sparse
            code is largest. If the patches of a row look alike, they show what the head or the entry responds to."""),
    ),
    "ablation": (
        "What happens without a head",
        _text("""Each head is switched off in turn, and the prediction is compared with that of the complete network by
            the Kullback–Leibler divergence in nats: 0 means no change."""),
    ),
}

RULE = _text("""Measured on {} pictures. The first R^c is that of tokens at unit length; the second, in brackets, is
    that of the tokens as they are, which grow longer with every step. A compression works as designed if it lowers R^c
    for {clearly:.0f} % of the pictures and by {effect:.0f} % on average. A sparsification works as designed if it does
    the same to the LASSO, and if its code costs less than the zero code: above 100 % of that cost, a code of zeros
    would be better. “Partly” means that one half works, or that both work a little. “Unknown” means that an operator
    states no aim.""")

WEIGHTS = _text("""The theory assumes orthonormal bases (a distance of 0 and a size of 1), orthogonal subspaces
    (coherence 0), an orthogonal dictionary (a distance of 0), a step that is not too long, and tokens so small that a
    series converges (the largest value over the pictures is shown). Training enforces none of this; the table shows how
    far the weights are from it. A dash means that an operator does not have the quantity.""")

APPROXIMATIONS = _text("""Is the step of the compression a gradient step on R^c, as in its derivation? {answer}. On
    average over layers and pictures, the step that the network takes has a cosine of {gradient_cosine} with the exact
    gradient step, and of {unit_cosine} with the gradient step on R^c of tokens at unit length, which the table above
    uses. The first-order Neumann form of the gradient has a cosine of {neumann_cosine} with the exact one (relative
    residual {neumann_residual}), and the softmax form {softmax_cosine} ({softmax_residual}). The Neumann form needs
    γ‖Gram‖ below 1; the softmax form also assumes that the subspaces together span the space. Large residuals mean
    that the derivation does not hold literally; the table above shows what the step does to R^c.""")

KINDS = {
    "layers": "Two line charts over the layers: the coding rate and the share of non-zero entries",
    "epochs": "Two line charts over the layers, a line for each epoch: coding rate and non-zero share",
    "audit": "Two bar charts and two line charts over the layers: what each half-step changes, rank, directions",
    "subspaces": "Square matrices of cosines between the directions of all subspaces, one for each layer",
    "token_colours": "Pictures, and below them their patches in colours, a row for each layer",
    "tokens": "Matrices of tokens by coordinates, one for each layer",
    "attention": "A picture, and the attention of every head in some layers drawn over it",
    "head_patches": "Rows of small pieces of pictures, a row for each head",
    "atom_patches": "Rows of small pieces of pictures, a row for each entry of the code",
    "head_importance": "A matrix of layers by heads, brighter where the prediction depends on the head",
}

GLOSSARY = {
    "token, Z^l": _text("""The d numbers that represent a patch after l − 1 layers. Z^{l+1/2} is the token
        after the compression of layer l, Z^{l+1} after its sparsification."""),
    "subspace, U_k": "The p directions along which head k of a layer compares and moves tokens.",
    "coding rate, R": _text("""Half the log-determinant of I + d/(N ε²) Z Zᵀ: the nats needed to code N tokens
        up to an error of ε. Large when tokens point in many directions."""),
    "R^c": _text("""The same after projecting the tokens onto each subspace, summed over the subspaces. Small
        when the tokens lie close together in every subspace: that is what compression is for."""),
    "ΔR": "R − R^c. Large when the tokens are spread out overall and compact in each subspace, which is the objective.",
    "objective": "ΔR − λ‖Z‖₀, the sparse rate reduction, which the layers were derived to increase.",
    "non-zero fraction": "The share of non-zero entries of the sparse code; for ISTA, of Z^{l+1}: ‖Z‖₀/(N·d).",
    "LASSO": _text("""λ‖A‖₁ + ½‖Y − A Dᵀ‖² for the code A of the tokens Y in the dictionary D, over codes
        without negative entries. “Before” is its value at the positive part of Y, “after” at the layer's code.
        The zero code costs ½‖Y‖²; a code that costs more is worse than no code."""),
    "dictionary, D": "Its columns are the atoms; tokens are written as sums of them.",
    "effective rank": "The number of directions that the tokens use: the exponential of the entropy of their energies.",
    "coherence": "The cosine of the smallest angle between two subspaces, averaged over pairs.",
    "η‖D‖²": _text("""The length of the sparsification step. From a code without negative entries a step lowers
        the LASSO if this is below 2. The layer starts from Y, which has negative entries, so this is a guide, not a
        proof."""),
    "γ‖Gram‖": _text("""Attention is derived from the gradient of R^c by a series, which converges if this is
        below 1. It says whether the derivation holds, not how good the attention is."""),
    "interval": "95 % bootstrap interval of the mean over pictures.",
}

COLUMNS = """The columns of these tables

NAME_std, NAME_low, NAME_high   standard deviation over pictures, and the 95 % bootstrap interval of the mean

layers_*.csv, epochs.csv
  definition       the definition of R^c: paper, official, unit, or one of these with another ε
  curve, epoch     the pictures, network or epoch that was measured
  Rc, nonzero      R^c, and the share of non-zero entries of the sparse code

audit.csv, a line for each layer, and audit_samples.csv, one for each layer and picture (`sample` is its number)
  NAME@Z, NAME@Z_half, NAME@Z_next   before the layer, after compression, after sparsification:
    R, Rc, dR                   coding rate, R^c and their difference, of the tokens as they are
    R_unit, Rc_unit, dR_unit    the same of tokens at unit length
    nonzero, l1                 shares of N·d: entries that are not zero, and the sum of sizes
    objective                   dR − λ times the number of entries that are not zero
    rank                        effective rank
  compress_improves_NAME, sparsify_improves_NAME   share of pictures in which a half-step improves NAME
  compress_aim                what the compression says that it lowers
  aim_before, aim_after       what the sparsification was derived to lower, at ReLU(Y) and at the layer's code
  lasso_before, _after        the LASSO there; _signed at Y itself, _zero at the zero code
  gradient_cosine             the compression's step with the exact gradient step on R^c
  unit_cosine                 the same with that on R^c of tokens at unit length
  neumann_…, softmax_…        two approximations of that gradient: relative residual, and cosine with it
  gram                        γ‖Gram‖, the largest over heads; the series converges below 1
  U_size, orthonormality      ‖U_k‖²/p and ‖U_kᵀU_k/size − I‖/√p, means over heads
  coherence, coherence_max    cosine of the smallest angle between two subspaces: mean and largest
  orthogonality               ‖DᵀD − I‖/√d
  eta_D                       η‖D‖²
  lam, dead                   λ, and the heads onto which everything projects to zero

head_importance.csv
  kl_nats                     change of the prediction without the head, mean over a few pictures
tokens.csv (a network without CRATE layers)
  nonzero, rank, R, R_unit    of the tokens after every block
"""
