"""The folded copy against the network, the paper's pseudocode, and other runtimes."""

import copy
import pickle

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from opencrate.operators import compressions, sparsifications
from opencrate.operators.ista import ISTA
from opencrate.operators.mssa import MSSA, TiedMSSA
from opencrate.operators.prox_mm import ProxMM, TightProxMM
from opencrate.speed import training_forms
from opencrate.speed.norm_folding import NormFoldedISTA, NormFoldedMSSA

from ..networks import own, small, transcribed
from ..strategies import random

NETWORKS = [
    {},
    {"global_pool": "avg"},
    {"global_pool": ""},
    {"depth": 1},
    {"num_heads": 1},
    {"num_heads": 3, "head_dim": 5},
    {"sparsify_args": {"eta": 0.3, "lam": 0.7}},
    {"norm_eps": 0.1},
    {"in_chans": 1},
    {"img_size": (8, 20), "patch_size": (4, 2)},
    {"num_classes": 0},
    {"num_classes": 0, "global_pool": "avg"},
    {"dynamic_img_size": True},
    {"attention": "reference"},
    {"compress": "mssa_tied", "compress_args": {"eps": 0.3}},
    {"compress": "mssa_tied", "global_pool": "avg"},
    {"sparsify": "prox_mm", "sparsify_args": {"eps": 0.3, "lam": 0.2}},
    {"sparsify": "prox_mm_tight", "img_size": (8, 16)},
]


def pictures(model, batch: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0):
    return random(batch, model.patch_embed.in_chans, *model.patch_embed.img_size, dtype=dtype, seed=seed)


def distance(ours, truth) -> float:
    """The size of the difference relative to the truth's own."""
    ours, truth = ours.detach().double(), truth.detach().double()
    return float((ours - truth).norm() / truth.norm())


@pytest.mark.parametrize("arguments", NETWORKS, ids=str)
def test_the_same_outputs(arguments):
    model = small(dtype=torch.float64, **arguments)
    folded, images = model.fold(), pictures(model)
    Z = model.forward_features(images)
    assert distance(folded(images), model(images)) < 1e-14
    assert distance(folded.forward_features(images), Z) < 1e-14
    assert distance(folded.forward_head(Z), model.forward_head(Z)) < 1e-14


@pytest.mark.parametrize("arguments", [{}, {"global_pool": "avg"}, {"num_heads": 1}], ids=str)
def test_the_papers_pseudocode(arguments):
    model = small(dtype=torch.float64, **arguments)
    images = pictures(model)
    assert distance(model.fold()(images), transcribed(model)(images)) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_rounds_no_worse_than_the_network(dtype, pool):
    """Against float64; the folded weights are rounded once, as the network's are."""
    exact = small(dtype=torch.float64, global_pool=pool, num_classes=50)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(dtype))
    images = pictures(exact, batch=32).to(dtype)
    model, truth = copy.deepcopy(exact).to(dtype), exact(images.double())
    folded = model.fold()
    assert folded(images).dtype == dtype
    assert distance(folded(images), truth) < 2 * distance(model(images), truth)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_no_worse_than_the_network_on_cuda(dtype):
    exact = small(dtype=torch.float64, embed_dim=64, num_classes=50).cuda()
    images = pictures(exact, batch=32).cuda()
    model, truth = copy.deepcopy(exact).to(dtype), exact(images)
    folded = model.fold()
    assert {tensor.device.type for tensor in (*folded.parameters(), *folded.buffers())} == {"cuda"}
    assert distance(folded(images.to(dtype)), truth) < 2 * distance(model(images.to(dtype)), truth)


def test_autocast():
    model = small(num_classes=50)
    images = pictures(model, batch=32, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = model.fold()(images), model(images)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert distance(ours, model(images)) < 2 * distance(theirs, model(images))


def test_pictures_of_other_sizes():
    model = small(dtype=torch.float64, dynamic_img_size=True)
    images = random(2, 3, 24, 8)
    assert distance(model.fold()(images), model(images)) < 1e-14


def test_pictures_of_one_colour():
    """Their patches have no variance: LayerNorm's guard divides 0."""
    model = small(dtype=torch.float64)
    images = torch.full((1, 3, 16, 16), 2.0, dtype=torch.float64)
    assert distance(model.fold()(images), model(images)) < 1e-14


def test_a_classifier_without_bias():
    model = small(dtype=torch.float64)
    model.head = nn.Linear(24, 7, bias=False, dtype=torch.float64)
    assert distance(model.fold()(pictures(model)), model(pictures(model))) < 1e-14


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_pruned_networks(norm, head):
    model = small(dtype=torch.float64)
    model.prune_intermediate_layers(1, prune_norm=norm, prune_head=head)
    assert distance(model.fold()(pictures(model)), model(pictures(model))) < 1e-14


def test_networks_for_another_size_and_other_classes():
    model = small(dtype=torch.float64, compress="mssa_tied", sparsify="prox_mm")
    model.set_input_size(img_size=(24, 16), patch_size=8)
    model.reset_classifier(7, "avg")
    assert distance(model.fold()(pictures(model)), model(pictures(model))) < 1e-14


def test_gradients_reach_the_pictures():
    model = small(dtype=torch.float64)
    images = pictures(model).requires_grad_()
    ours, truth = (torch.autograd.grad(network(images).square().sum(), images)[0] for network in (model.fold(), model))
    assert distance(ours, truth) < 1e-13


def test_a_network_in_training_is_folded_as_in_eval():
    rates = {"drop_rate": 0.5, "pos_drop_rate": 0.5, "proj_drop_rate": 0.5, "attn_drop_rate": 0.5}
    model = small(dtype=torch.float64, drop_path_rate=0.5, **rates)
    truth = model(pictures(model))
    folded = model.train().fold()
    assert not folded.training
    assert distance(folded(pictures(model)), truth) < 1e-14
    assert distance(folded.train()(pictures(model)), truth) < 1e-14


def test_the_network_stays_as_it_is_and_the_copy_is_its_own():
    model = small(dtype=torch.float64).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    folded = model.fold()
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    images = pictures(model)
    truth = folded(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(folded(images), truth)


@pytest.mark.parametrize(("arguments", "count"), [({}, 3 * 3 + 2), ({"num_heads": 1}, 2 * 3 + 2)])
def test_every_matrix_is_a_linear_layer(arguments, count):
    folded = small(**arguments).fold()
    linear = [module for module in folded.modules() if isinstance(module, nn.Linear)]
    matrices = [parameter for parameter in folded.parameters() if parameter.dim() > 1]
    assert len(linear) == count
    assert {id(parameter) for parameter in matrices} == {id(layer.weight) for layer in linear}
    assert not any(parameter.requires_grad for parameter in folded.parameters())


def test_the_last_layer_computes_the_class_token_alone():
    n, d, classes, depth = 17, 24, 5, 3
    folded = small(attention="reference").fold()
    with FlopCounterMode(display=False) as counter:
        folded(torch.randn(1, 3, 16, 16))
    projections, attention = 2 * n * d * d, 2 * 2 * n * n * d
    whole_layers = (depth - 1) * (3 * projections + attention)
    last_layer = projections + (2 * projections + attention) // n
    assert counter.get_total_flops() == 2 * n * 48 * d + whole_layers + last_layer + 2 * d * classes


def test_copies_and_checkpoints():
    folded, other = small().fold(), small(seed=1).fold()
    images = random(2, 3, 16, 16, dtype=torch.float32)
    other.load_state_dict(folded.state_dict())
    for twin in (other, copy.deepcopy(folded), pickle.loads(pickle.dumps(folded))):
        assert torch.equal(twin(images), folded(images))


def test_what_timm_asks_of_a_network():
    model = timm.create_model("crate_tiny_patch4_32", depth=1, num_classes=7)
    folded = model.fold()
    assert (folded.num_classes, folded.num_features) == (7, 384)
    assert timm.data.resolve_model_data_config(folded) == timm.data.resolve_model_data_config(model)


def test_attention_stays_as_chosen():
    assert {layer.attention for layer in small(attention="reference").fold().layers} == {"reference"}


@pytest.mark.parametrize("name", sorted(set(own(compressions)) - {"mssa", "mssa_tied"}))
def test_other_compressions_do_not_fold(name):
    with pytest.raises(ValueError, match=f"the compression {name} "):
        small(compress=name).fold()


@pytest.mark.parametrize("name", sorted(set(own(sparsifications)) - {"ista", "prox_mm", "prox_mm_tight"}))
def test_other_sparsifications_do_not_fold(name):
    with pytest.raises(ValueError, match=f"the sparsification {name} "):
        small(sparsify=name).fold()


def changed(operator, known, role):
    """The operator with a role of its own in place of the one that it has from `known`."""
    own = {role: getattr(known, role)}
    own[role] = (lambda self, *values: getattr(known, role)(self, *values)) if callable(own[role]) else not own[role]
    operator.__class__ = type("Changed", (known,), own)


@pytest.mark.parametrize(
    ("known", "role"),
    [
        *((MSSA, role) for role in ("forward", "of_first", "output", "replaces")),
        *((ISTA, role) for role in ("forward", "code", "decode", "replaces")),
        *((TiedMSSA, "forward"), (ProxMM, "code"), (TightProxMM, "forward"), (TightProxMM, "curvature")),
    ],
)
def test_an_operator_that_computes_otherwise_takes_no_fast_form(known, role):
    """Though it extends one that has a fast form: it would be passed over without a word."""
    half = "compress" if issubclass(known, (MSSA, TiedMSSA)) else "sparsify"
    name = {MSSA: "mssa", TiedMSSA: "mssa_tied", ISTA: "ista", ProxMM: "prox_mm", TightProxMM: "prox_mm_tight"}[known]
    model = small(**{half: name})
    model.fold()
    changed(getattr(model.blocks[1], half).operator, known, role)
    with pytest.raises(ValueError, match=rf"^the (compression|sparsification) {name} does not fold; "):
        model.fold()
    fast = {"compress": NormFoldedMSSA, "sparsify": NormFoldedISTA}[half]
    forms = [type(getattr(layer, half)) is fast for layer in training_forms(model).layers]
    assert forms == [known in (MSSA, ISTA), False, known in (MSSA, ISTA)]


def test_a_subclass_that_computes_the_same_takes_the_fast_forms():
    model = small(dtype=torch.float64)
    truth = model(pictures(model))
    for layer in model.blocks:
        layer.compress.operator.__class__ = type("Subspaces", (MSSA,), {"__doc__": "With more to say."})
        layer.sparsify.operator.__class__ = type("Dictionary", (ISTA,), {"__doc__": "With more to say."})
    assert distance(model.fold()(pictures(model)), truth) < 1e-14
    forms = {type(half) for layer in training_forms(model).layers for half in (layer.compress, layer.sparsify)}
    assert forms == {NormFoldedMSSA, NormFoldedISTA}


@pytest.mark.parametrize(
    "operator", [{"compress": "mssa_tied"}, {"sparsify": "prox_mm"}, {"sparsify": "prox_mm_tight"}], ids=str
)
def test_what_depends_on_the_number_of_tokens_needs_it(operator):
    (name,) = operator.values()
    with pytest.raises(ValueError, match=f"{name} depends on the number of tokens"):
        small(**operator, dynamic_img_size=True).fold()


@pytest.mark.parametrize(
    ("dynamic", "shape"),
    [(False, (3, 16, 16)), (False, (2, 1, 16, 16)), (False, (2, 3, 16, 20)), (True, (2, 3, 16, 18))],
)
def test_other_pictures_are_refused_as_by_the_network(dynamic, shape):
    model = small(dynamic_img_size=dynamic)
    with pytest.raises(ValueError, match="images") as ours:
        model.fold()(torch.randn(shape))
    with pytest.raises(ValueError, match="images") as theirs:
        model(torch.randn(shape))
    assert str(ours.value) == str(theirs.value)


@pytest.mark.unhooked
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_compiles_as_one_graph(pool):
    torch._dynamo.reset()
    model = small(dtype=torch.float32, depth=2, global_pool=pool)
    folded, images = model.fold(), pictures(model, dtype=torch.float32)
    with torch.inference_mode():
        assert distance(torch.compile(folded, fullgraph=True, backend="aot_eager")(images), model(images)) < 1e-6


@pytest.mark.unhooked
@pytest.mark.parametrize("arguments", [{}, {"global_pool": "avg"}, {"dynamic_img_size": True}], ids=str)
def test_exports_with_any_batch(arguments):
    folded = small(**arguments).fold()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(folded, (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: batch},))
    images = torch.randn(5, 3, 16, 16)
    assert distance(exported.module()(images), folded(images)) < 1e-6


@pytest.mark.unhooked
@pytest.mark.parametrize(("pool", "batch"), [("token", "any"), ("avg", 2)])
def test_onnx_has_standard_operators_only(tmp_path, pool, batch):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, file = small(depth=2, global_pool=pool), tmp_path / "model.onnx"
    dynamic = ({0: torch.export.Dim("batch", min=1, max=64)},) if batch == "any" else None
    example = (torch.randn(2, 3, 16, 16),)
    torch.onnx.export(model.fold(), example, file, dynamo=True, dynamic_shapes=dynamic, input_names=["images"])

    graph = onnx.load(file)
    onnx.checker.check_model(graph, full_check=True)
    assert {node.domain for node in graph.graph.node} == {""}
    assert not graph.functions
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    images = torch.randn(5 if batch == "any" else batch, 3, 16, 16)
    (ours,) = session.run(None, {"images": images.numpy()})
    assert distance(torch.from_numpy(ours), model(images)) < 1e-6
