"""The report's plain words, in one place: what each section is about, and what each term means."""

__all__ = ["ABOUT", "APPROXIMATIONS", "COLUMNS", "GLOSSARY", "KINDS", "READINGS", "RULE", "WEIGHTS"]


def _text(words: str) -> str:
    return " ".join(words.split())


READINGS = {
    "paper": "R^c of the tokens after compression, as the paper's text says",
    "official": "R^c of what the compression sees, every token at unit length, as the authors' script measures it",
    "unit": "R^c of the tokens after compression, every token at unit length: what shrinking gains does not count",
}

ABOUT = {
    "layers": (
        "What passes from layer to layer",
        _text("""Every layer is meant to do two things: press the tokens of a picture closer to a few subspaces,
            so that the coding rate R^c falls, and write them with few entries that are not zero, so that the
            non-zero fraction falls. R^c counts, roughly, how many nats the tokens need once each subspace has a
            code book of its own: the fewer, the better organised they are. “Untrained” is the same network with
            fresh weights: what that does too, training did not bring about."""),
    ),
    "epochs": (
        "How it came about",
        "The same two quantities, epoch by epoch.",
    ),
    "audit": (
        "Does each layer do what it was designed for?",
        _text("""A layer takes two half-steps. Compression should lower R^c; it is measured here on tokens of
            unit length, because LayerNorm hides their length from the next half. Sparsification should lower
            the LASSO: the error of writing each token as a sum of dictionary atoms, plus a price λ on the size
            of the code."""),
    ),
    "subspaces": (
        "The subspaces",
        _text("""Every head has a subspace of its own. Dark squares off the diagonal mean that two heads look at
            the same directions. The coherence is 0 for subspaces at right angles and 1 for subspaces that share
            a direction."""),
    ),
    "tokens": (
        "The tokens",
        _text("""To the network a picture is a set of tokens: one for each patch, and one for the class. Each
            row below is a token, each column one of its coordinates."""),
    ),
    "attention": (
        "What it attends to",
        _text("""Each head draws a token towards the patches that look alike in the head's subspace. These are
            the patches."""),
    ),
    "patches": (
        "What heads and entries of the code stand for",
        _text("""The patches that lie farthest along a head's main direction, and those where an entry of the
            sparse code is largest. A row of patches that look alike says what the head or the entry stands for."""),
    ),
    "ablation": (
        "What happens without a head",
        _text("""Each head alone is switched off, and the prediction compared with the whole network's, by the
            Kullback–Leibler divergence in nats: 0 is no change."""),
    ),
}

RULE = _text("""On {} pictures. R^c is that of tokens at unit length; beside it, that of the tokens as they are,
    which grow longer with every step. A compression works if it lowers R^c for {clearly:.0%} of the pictures, by
    {effect:.0%} on average; a sparsification if it does so with the LASSO, and if its code costs less than the zero
    code, which says nothing at all: above 100 % of that, doing nothing would be better. “Partly”: one half
    works, or both a little.""")

WEIGHTS = _text("""The theory has bases that are orthonormal (0 whatever their size, and a size of 1), subspaces
    at right angles (coherence 0), an orthogonal dictionary (0), a step that is not too long, and tokens so
    small that a series converges (the largest value over the pictures). Training enforces none of it: this is
    how far it is.""")

APPROXIMATIONS = _text("""Is the step that attention takes a gradient step on R^c, as it was derived to be?
    {answer}. On average over layers and pictures, the step that the network takes has a cosine of
    {gradient_cosine} with the exact step, and of {unit_cosine} with that on R^c of tokens at unit length, by
    which the table judges it. The first-order Neumann form of the gradient has a cosine of
    {neumann_cosine} with it (relative residual {neumann_residual}), the softmax form one of {softmax_cosine}
    ({softmax_residual}). The Neumann form needs γ‖Gram‖ below 1; the softmax form also takes the subspaces
    together for the whole space. So large residuals tell how literally the derivation may be taken; what the
    step does to R^c is in the table above.""")

KINDS = {
    "layers": "Two line charts over the layers: the coding rate, and the share of entries that are not zero",
    "epochs": "Two line charts over the layers, a line for each epoch: coding rate and non-zero share",
    "audit": "Two bar charts and two line charts over the layers: what each half-step changes, rank, directions",
    "subspaces": "Square matrices of cosines between the directions of all subspaces, one for each layer",
    "token_colours": "Pictures, and below them their patches in colours, a row for each layer",
    "tokens": "Matrices of tokens by coordinates, one for each layer",
    "attention": "A picture, and over it the attention of every head in some layers",
    "head_patches": "Rows of small pieces of pictures, a row for each head",
    "atom_patches": "Rows of small pieces of pictures, a row for each entry of the code",
    "head_importance": "A matrix of layers by heads, brighter where the prediction depends on the head",
}

GLOSSARY = {
    "token, Z^l": _text("""What the network knows of a patch after l − 1 layers: a list of d numbers. Z^{l+1/2}
        is the same after layer l has compressed it, Z^{l+1} after it has sparsified it."""),
    "subspace, U_k": "The p directions along which head k of a layer compares and moves tokens.",
    "coding rate, R": _text("""Half the log-determinant of I + d/(N ε²) Z Zᵀ: the nats needed to code N tokens
        up to an error of ε. Large when tokens point in many directions."""),
    "R^c": _text("""The same after projecting the tokens onto each subspace, summed over the subspaces. Small
        when the tokens lie close together in every subspace: that is what compression is for."""),
    "ΔR": "R − R^c: spread as a whole, compact in each subspace. The network's objective wants it large.",
    "objective": "ΔR − λ‖Z‖₀, sparse rate reduction: what the layers were derived to increase.",
    "non-zero fraction": "The share of the entries of Z^{l+1} that are not zero, ‖Z‖₀/(N·d).",
    "LASSO": _text("""λ‖A‖₁ + ½‖Y − A Dᵀ‖² for the code A of the tokens Y in the dictionary D, over codes
        without negative entries. “Before” is its value at the positive part of Y, “after” at the layer's code.
        The zero code says nothing of Y and costs ½‖Y‖²: a code that costs more is not worth its price."""),
    "dictionary, D": "Its columns are the atoms of which tokens are written as sums.",
    "effective rank": "How many directions the tokens really use: the exponential of the entropy of their energies.",
    "coherence": "The cosine of the smallest angle between two subspaces, averaged over pairs.",
    "η‖D‖²": _text("""The length of the sparsification step. From a code without negative entries a step lowers
        the LASSO if this is below 2; the layer starts from Y, which has some, so it is a guide and no proof."""),
    "γ‖Gram‖": _text("""Whether the series converges by which attention is derived from the gradient of R^c:
        below 1 it does. It says how literally the derivation may be taken, not how good the attention is."""),
    "interval": "95 % bootstrap interval of a mean over pictures: other pictures would mostly give a mean within it.",
}

COLUMNS = """The columns of these tables

NAME_std, NAME_low, NAME_high   standard deviation over pictures, and the 95 % bootstrap interval of the mean

layers_*.csv, epochs.csv
  definition       how R^c is read: paper, official, unit, or one of these with another ε
  curve, epoch     of which pictures, network or epoch
  Rc, nonzero      R^c, and the share of entries of Z^{l+1} that are not zero

audit.csv, a line for each layer, and audit_samples.csv, one for each layer and picture (`sample` counts them as drawn)
  NAME@Z, NAME@Z_half, NAME@Z_next   before the layer, after compression, after sparsification:
    R, Rc, dR                   coding rate, R^c and their difference, of the tokens as they are
    R_unit, Rc_unit, dR_unit    the same of tokens at unit length
    nonzero, l1                 shares of N·d: entries that are not zero, and the sum of sizes
    objective                   dR − λ times the number of entries that are not zero
    rank                        effective rank
  compress_improves_NAME, sparsify_improves_NAME   share of pictures in which a half-step moves NAME as it should
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
  kl_nats                     how far predictions move without the head, mean over a few pictures
tokens.csv (a network that is no CRATE)
  nonzero, rank, R, R_unit    of the tokens after every block
"""
