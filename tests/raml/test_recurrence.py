"""The recurrent layers on the CPU give what torch's own give, with its gradients."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tenfold.raml.recurrence import Packing, run_gru


@pytest.mark.parametrize(("bidirectional", "layers"), [(True, 1), (True, 2), (False, 1), (False, 3)])
def test_outputs_states_and_gradients_are_those_of_torch(bidirectional, layers):
    torch.manual_seed(0)
    gru = nn.GRU(5, 4, layers, batch_first=True, bidirectional=bidirectional).double()
    lengths, inputs = torch.tensor([3, 1, 6, 3]), torch.randn(4, 7, 5, dtype=torch.double, requires_grad=True)
    start = torch.randn(layers * (1 + bidirectional), 4, 4, dtype=torch.double, requires_grad=True)
    outputs, last = run_gru(gru, inputs, lengths, start)
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    peer, peer_last = gru(packed, start)
    peer, _ = pad_packed_sequence(peer, batch_first=True, total_length=7)
    torch.testing.assert_close(outputs, peer, rtol=0, atol=1e-14)
    torch.testing.assert_close(last, peer_last, rtol=0, atol=1e-14)
    weight, weight_last = torch.randn_like(outputs), torch.randn_like(last)
    wanted = [inputs, start, *gru.parameters()]
    ours = torch.autograd.grad((outputs * weight).sum() + (last * weight_last).sum(), wanted)
    theirs = torch.autograd.grad((peer * weight).sum() + (peer_last * weight_last).sum(), wanted)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_gradients_by_finite_differences():
    torch.manual_seed(1)
    gru = nn.GRU(2, 3, batch_first=True, bidirectional=True).double()
    inputs = torch.randn(3, 4, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: run_gru(gru, x, torch.tensor([2, 4, 1])), (inputs,))


def test_packing_and_back_loses_the_padding_only():
    lengths, values = torch.tensor([2, 4, 1]), torch.arange(1, 16).reshape(3, 5)
    packing = Packing(lengths, 5)
    packed = packing.pack(values)
    assert packing.steps == [3, 2, 1, 1]  # sequences longer than 0, 1, 2, 3
    assert packed.tolist() == [6, 1, 11, 7, 2, 8, 9]
    assert packed[packing.mirrored].tolist() == [9, 2, 11, 8, 1, 7, 6]  # each from its end
    real = torch.arange(5) < lengths[:, None]
    assert torch.equal(packing.pad(packed), values * real)
