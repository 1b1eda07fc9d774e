"""RNN, GRU and LSTM, unrolled into the linear maps that they are made of.

The fused kernels hide what each time step saw, and ``vmap`` cannot run them. Unrolled, a recurrent
layer is two linear maps per direction: one of the inputs and one of the hidden states. Each is
recorded like any other, with time steps as positions. The results are those of the fused kernels,
up to rounding.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pacdp.errors import InputError

# Records that the weight and bias of these names mapped these inputs to these outputs.
Record = Callable[[str, str, list[Tensor], list[Tensor]], None]

Recurrent = nn.RNN | nn.GRU | nn.LSTM
RECURRENT = (nn.RNN, nn.GRU, nn.LSTM)


def unroll(layer: Recurrent, record: Record) -> Callable[..., object]:
    """Return a forward of ``layer`` that calls ``record`` for every linear map."""
    if isinstance(layer, nn.LSTM) and layer.proj_size:
        raise InputError("LSTM: proj_size is not supported; put a Linear layer after it")

    # The names of the arguments are torch's own.
    def forward(input: Tensor, hx: object = None) -> object:  # noqa: A002
        if not isinstance(input, Tensor) or input.ndim != 3:
            raise InputError(
                f"{type(layer).__name__}: input must be a batch of sequences, a tensor of 3 "
                "dimensions; packed sequences are not supported"
            )
        steps = input
        directions = 2 if layer.bidirectional else 1
        hidden, cell = _initial_state(layer, steps, hx, directions)
        final: list[tuple[Tensor, Tensor]] = []
        for number in range(layer.num_layers):
            outputs = []
            for direction in range(directions):
                suffix = f"l{number}" + ("_reverse" if direction else "")
                place = number * directions + direction
                start = (hidden[place], cell[place])
                output, end = _run(layer, steps, start, suffix, bool(direction), record)
                outputs.append(output)
                final.append(end)
            steps = torch.cat(outputs, dim=2)
            if layer.dropout and number < layer.num_layers - 1:
                steps = F.dropout(steps, layer.dropout, layer.training)
        last_hidden = torch.stack([end[0] for end in final])
        if isinstance(layer, nn.LSTM):
            return steps, (last_hidden, torch.stack([end[1] for end in final]))
        return steps, last_hidden

    return forward


def _initial_state(
    layer: Recurrent, steps: Tensor, state: object, directions: int
) -> tuple[Tensor, Tensor]:
    if state is None:
        state = steps.new_zeros(layer.num_layers * directions, len(steps), layer.hidden_size)
    if isinstance(state, tuple):
        return state[0], state[1]
    assert isinstance(state, Tensor)
    return state, state


def _run(
    layer: Recurrent,
    steps: Tensor,
    start: tuple[Tensor, Tensor],
    suffix: str,
    backwards: bool,
    record: Record,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run one direction of one layer over all time steps."""
    names = [f"{kind}_{part}_{suffix}" for part in ("ih", "hh") for kind in ("weight", "bias")]
    w_in, b_in, w_hidden, b_hidden = (cast(Tensor, getattr(layer, n, None)) for n in names)
    from_inputs = F.linear(steps, w_in, b_in)
    if _is_trained(w_in, b_in):
        record(names[0], names[1], [steps], [from_inputs])
    hidden, cell = start
    inputs, results = [], []
    outputs: dict[int, Tensor] = {}
    times = range(steps.shape[1])
    for time in reversed(times) if backwards else times:
        from_hidden = F.linear(hidden, w_hidden, b_hidden)
        inputs.append(hidden)
        results.append(from_hidden)
        hidden, cell = _advance(layer, from_inputs[:, time], from_hidden, hidden, cell)
        outputs[time] = hidden
    if _is_trained(w_hidden, b_hidden):
        record(names[2], names[3], inputs, results)
    return torch.stack([outputs[time] for time in times], dim=1), (hidden, cell)


def _is_trained(*parameters: Tensor | None) -> bool:
    return any(parameter is not None and parameter.requires_grad for parameter in parameters)


def _advance(
    layer: Recurrent, from_inputs: Tensor, from_hidden: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the next hidden state and the next cell state."""
    if isinstance(layer, nn.GRU):
        reset_in, update_in, new_in = from_inputs.chunk(3, 1)
        reset_hidden, update_hidden, new_hidden = from_hidden.chunk(3, 1)
        reset = torch.sigmoid(reset_in + reset_hidden)
        update = torch.sigmoid(update_in + update_hidden)
        new = torch.tanh(new_in + reset * new_hidden)
        return new + update * (hidden - new), cell
    if isinstance(layer, nn.LSTM):
        enter, forget, new, leave = (from_inputs + from_hidden).chunk(4, 1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell
    activation = torch.tanh if layer.nonlinearity == "tanh" else torch.relu
    return activation(from_inputs + from_hidden), cell
