//! The recurrent layers: outputs, states and snapshots of ragged steps, and the same bits whatever the steps are.

mod layer;

use layer::Layer;
use tokenmill_ptx_sim::{Arguments, DevicePtr};
use tokenmill_testkit::Random;

use crate::kernels::bench::NULL;

const N_TOKENS: usize = 64;

/// Returns the dynamic shared memory of a thread block that takes chunks.
fn chunk_bytes(lanes: usize) -> usize {
    4 * (6464 + 1024 * lanes)
}

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

#[test]
fn convolutions_reach_into_states_and_keep_them() {
    for (n_channels, n_taps, has_bias, has_silu) in [
        (1, 2, false, false),
        (130, 3, false, false),
        (64, 4, true, true),
        (70, 5, true, false),
        (9, 16, false, true),
    ] {
        let mut random = Random::new(n_channels as u64);
        let x = random.values(N_TOKENS * n_channels);
        let weight = random.values(n_channels * n_taps);
        let bias = random.values(n_channels);
        let n_past = n_taps - 1;
        let stride = (n_channels * n_past).next_multiple_of(64);
        let (x64, w64, bias64) = (f64s(&x), f64s(&weight), f64s(&bias));
        Layer {
            name: format!("{n_channels} channels, {n_taps} taps"),
            out_width: n_channels,
            state_len: n_channels * n_past,
            state_start: 0,
            stride,
            launch: &|sim, step, slots, y| {
                let input = step.rows(sim, &x, n_channels);
                let [seq_starts, records] = step.device(sim);
                let arguments = Arguments::new()
                    .ptr(input)
                    .ptr(sim.f32s(&weight))
                    .ptr(if has_bias { sim.f32s(&bias) } else { NULL })
                    .i32(n_channels as i32)
                    .i32(n_taps as i32)
                    .i32(i32::from(has_silu))
                    .ptr(seq_starts)
                    .ptr(records)
                    .ptr(slots)
                    .i32(stride as i32)
                    .ptr(y);
                let grid = [
                    n_channels.div_ceil(128),
                    step.longest().div_ceil(32),
                    step.n_seqs(),
                ];
                let kernel = if n_taps > 4 {
                    "short_conv_t16"
                } else {
                    "short_conv_t4"
                };
                sim.launch("short_conv", kernel, grid, 128, 0, &arguments)
            },
            has_chunks: false,
            token: &|state, token| {
                let row = &x64[token * n_channels..][..n_channels];
                let out = (0..n_channels).map(|c| {
                    let past = (0..n_past).map(|i| state[i * n_channels + c]).chain([row[c]]);
                    let sum: f64 = past.zip(&w64[c * n_taps..]).map(|(x, w)| x * w).sum();
                    let sum = sum + if has_bias { bias64[c] } else { 0.0 };
                    if has_silu { sum * sigmoid(sum) } else { sum }
                });
                let out: Vec<f64> = out.collect();
                state.rotate_left(n_channels);
                state[(n_past - 1) * n_channels..].copy_from_slice(row);
                out
            },
        }
        .check(&mut random);
    }
}

#[test]
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method itself is of one lifetime of layers"
)]
fn state_space_models_scan_their_tokens() {
    for model in [
        (4, 16, 1, 20, false, 0),
        (6, 12, 2, 8, false, 1),
        (3, 64, 1, 128, false, 4),
        (4, 64, 2, 50, false, 1),
        (2, 128, 1, 64, false, 0),
        (2, 32, 1, 254, false, 0),
        (2, 8, 2, 33, false, 0),
        (72, 1, 1, 16, true, 0),
        (40, 1, 1, 7, true, 0),
        (8, 1, 1, 40, true, 0),
    ] {
        with_state_space_model(model, |layer, random| layer.check(random));
    }
}

#[test]
fn chunks_of_a_state_space_model_cost_less_than_tokens() {
    with_state_space_model((4, 64, 1, 128, false, 0), |layer, _| {
        layer.check_costs(5_400, 31_000);
    });
}

/// `model`: heads, their width, groups, width of the state, decays of each index, and further columns before each of the rows.
fn with_state_space_model(
    model: (usize, usize, usize, usize, bool, usize),
    check: impl Fn(&Layer<'_>, &mut Random),
) {
    let (n_heads, head_dim, n_groups, n_state, has_own_decays, gap) = model;
    let mut random = Random::new(n_state as u64);
    let (width, group_width) = (n_heads * head_dim, n_groups * n_state);
    let row_width = width + 2 * group_width + 3 * gap;
    let [x_start, b_start, c_start] = [gap, width + 2 * gap, width + group_width + 3 * gap];
    let xbc = random.values(N_TOKENS * row_width);
    let dt = random.values(N_TOKENS * n_heads);
    let a: Vec<f32> = random
        .values(if has_own_decays {
            n_state * n_heads
        } else {
            n_heads
        })
        .iter()
        .map(|a| -a.abs() - 0.1)
        .collect();
    let (skip, dt_bias) = (random.values(n_heads), random.values(n_heads));
    let (state_start, stride) = (64, 64 + (width * n_state).next_multiple_of(64));
    let is_long = n_state > 32;
    let lane_len = if is_long { 16 } else { 4 };
    let lanes = usize::next_power_of_two(n_state.div_ceil(lane_len));
    let in_chunks = is_long && !has_own_decays && head_dim % (256 / lanes) == 0;
    let is_aligned = [n_state, row_width, b_start, c_start]
        .iter()
        .all(|n| n.is_multiple_of(4));
    let kernel = match (has_own_decays, is_long) {
        (false, false) => "ssm_scan_r4",
        (false, true) => "ssm_scan_r16",
        (true, false) => "ssm_scan_own_r4",
        (true, true) => "ssm_scan_own_r16",
    };
    let layer = Layer {
        name: format!("{n_heads} heads of {head_dim}, states of {n_state}"),
        out_width: width,
        state_len: width * n_state,
        state_start,
        stride,
        launch: &|sim, step, slots, y| {
            let rows = step.rows(sim, &xbc, row_width);
            let dt = step.rows(sim, &dt, n_heads);
            let [seq_starts, records] = step.device(sim);
            let at = |start: usize| DevicePtr(rows.0 + 4 * start as u64);
            let takes_chunks = in_chunks && step.takes_chunks(lanes);
            let mut arguments = Arguments::new()
                .ptr(at(x_start))
                .i32(row_width as i32)
                .ptr(at(b_start))
                .i32(row_width as i32)
                .ptr(at(c_start))
                .i32(row_width as i32)
                .ptr(dt)
                .i32(n_heads as i32)
                .i32(head_dim as i32)
                .i32(n_groups as i32)
                .i32(n_state as i32)
                .i32(lanes as i32)
                .i32(i32::from(is_aligned))
                .ptr(sim.f32s(&a))
                .ptr(sim.f32s(&skip))
                .ptr(sim.f32s(&dt_bias))
                .ptr(seq_starts)
                .ptr(records);
            let (mut kernel, mut shared_bytes) = (kernel, 0);
            if takes_chunks {
                arguments = arguments.ptr(step.positions(sim));
                (kernel, shared_bytes) = ("ssm_chunks", chunk_bytes(lanes));
            }
            let arguments = arguments
                .ptr(slots)
                .i32(stride as i32)
                .i32(state_start as i32)
                .ptr(y);
            let grid = [width.div_ceil(256 / lanes), step.n_seqs(), 1];
            sim.launch("ssm_scan", kernel, grid, 256, shared_bytes, &arguments)
        },
        has_chunks: in_chunks,
        token: &|state, token| {
            let row = f64s(&xbc[token * row_width..][..row_width]);
            let channel = |channel: usize| {
                let head = channel / head_dim;
                let group = head / (n_heads / n_groups) * n_state;
                let dt = softplus(f64::from(dt[token * n_heads + head]) + f64::from(dt_bias[head]));
                let x = row[x_start + channel];
                let state = &mut state[channel * n_state..][..n_state];
                let mut y = f64::from(skip[head]) * x;
                for (n, value) in state.iter_mut().enumerate() {
                    let a = a[if has_own_decays { n * n_heads + head } else { head }];
                    *value = (dt * f64::from(a)).exp() * *value + dt * x * row[b_start + group + n];
                    y += row[c_start + group + n] * *value;
                }
                y
            };
            (0..width).map(channel).collect()
        },
    };
    check(&layer, &mut Random::new(n_state as u64));
}

#[test]
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method itself is of one lifetime of layers"
)]
fn delta_rules_recall_and_correct() {
    for net in [
        (2, 4, 12, 16, false, false),
        (2, 4, 12, 6, true, false),
        (1, 2, 128, 40, false, false),
        (1, 2, 64, 70, true, false),
        (1, 1, 256, 20, false, false),
        (2, 2, 30, 9, false, false),
        (1, 1, 260, 8, false, false),
        (2, 2, 16, 16, false, true),
        (2, 4, 30, 9, true, true),
        (1, 2, 128, 40, false, true),
        (2, 2, 64, 70, false, true),
        (1, 1, 260, 8, false, true),
        (1, 1, 512, 3, false, true),
        (1, 1, 1, 1, false, true),
    ] {
        with_delta_net(net, |layer, random| layer.check(random));
    }
}

#[test]
fn chunks_of_a_delta_rule_cost_less_than_tokens() {
    with_delta_net((1, 2, 128, 128, false, false), |layer, _| {
        layer.check_costs(8_000, 31_000);
    });
    with_delta_net((2, 2, 128, 128, false, true), |layer, _| {
        layer.check_costs(14_500, 39_000);
    });
}

/// `net`: key heads, value heads, their widths, whether they are tiled, and whether each channel of a key has its own decay.
fn with_delta_net(net: (usize, usize, usize, usize, bool, bool), check: impl Fn(&Layer<'_>, &mut Random)) {
    let (n_k_heads, n_v_heads, dim_k, dim_v, is_tiled, is_of_channels) = net;
    let n_decays = if is_of_channels { dim_k } else { 1 };
    let mut random = Random::new(dim_k as u64);
    let (qk_width, v_width) = (n_k_heads * dim_k, n_v_heads * dim_v);
    let qkv_width = 2 * qk_width + v_width;
    let qkv = random.values(N_TOKENS * qkv_width);
    let (alpha, beta) = (
        random.values(N_TOKENS * n_v_heads * n_decays),
        random.values(N_TOKENS * n_v_heads),
    );
    let a: Vec<f32> = random.values(n_v_heads).iter().map(|a| -a.abs()).collect();
    let dt_bias = random.values(n_v_heads * n_decays);
    let (state_start, stride) = (128, 128 + (v_width * dim_k).next_multiple_of(64));
    let lanes = usize::next_power_of_two(dim_k.div_ceil(16));
    let layer = Layer {
        name: format!("{n_v_heads} heads of {dim_v}, keys of {dim_k}, {n_decays} decays"),
        out_width: v_width,
        state_len: v_width * dim_k,
        state_start,
        stride,
        launch: &|sim, step, slots, y| {
            let rows = step.rows(sim, &qkv, qkv_width);
            let (alpha, beta) = (
                step.rows(sim, &alpha, n_v_heads * n_decays),
                step.rows(sim, &beta, n_v_heads),
            );
            let [seq_starts, records] = step.device(sim);
            let mut arguments = Arguments::new()
                .ptr(rows)
                .ptr(alpha)
                .ptr(beta)
                .i32(n_k_heads as i32)
                .i32(n_v_heads as i32)
                .i32(dim_k as i32)
                .i32(dim_v as i32)
                .i32(i32::from(is_tiled))
                .i32(lanes as i32)
                .ptr(sim.f32s(&a))
                .ptr(sim.f32s(&dt_bias))
                .ptr(seq_starts)
                .ptr(records);
            let takes_chunks = step.takes_chunks(lanes) && (!is_of_channels || lanes <= 8);
            if takes_chunks {
                arguments = arguments.ptr(step.positions(sim));
            }
            let arguments = arguments
                .ptr(slots)
                .i32(stride as i32)
                .i32(state_start as i32)
                .ptr(y);
            let grid = [n_v_heads * dim_v.div_ceil(256 / lanes), step.n_seqs(), 1];
            let (kernel, shared_bytes) = match (is_of_channels, takes_chunks) {
                (true, true) => (
                    "delta_net_channels_chunks",
                    chunk_bytes(lanes) + 192 * (16 * lanes + 8),
                ),
                (true, false) => ("delta_net_channels", 12 * 16 * lanes * 4),
                (false, true) => ("delta_net_chunks", chunk_bytes(lanes)),
                (false, false) => ("delta_net", 16 * 16 * lanes * 4),
            };
            sim.launch("delta_net", kernel, grid, 256, shared_bytes, &arguments)
        },
        has_chunks: (2..=if is_of_channels { 8 } else { 16 }).contains(&lanes),
        token: &|state, token| {
            let row = f64s(&qkv[token * qkv_width..][..qkv_width]);
            let unit = |start: usize| -> Vec<f64> {
                let x = &row[start..start + dim_k];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let mut out = Vec::new();
            for head in 0..n_v_heads {
                let key_head = if is_tiled {
                    head % n_k_heads
                } else {
                    head / (n_v_heads / n_k_heads)
                };
                let (q, k) = (unit(key_head * dim_k), unit(qk_width + key_head * dim_k));
                let gate = token * n_v_heads + head;
                let biases = &dt_bias[head * n_decays..][..n_decays];
                let decays: Vec<f64> = (alpha[gate * n_decays..].iter().zip(biases))
                    .map(|(&alpha, &bias)| softplus(f64::from(alpha) + f64::from(bias)))
                    .map(|rate| (f64::from(a[head]) * rate).exp())
                    .collect();
                let rate = sigmoid(f64::from(beta[gate]));
                for j in 0..dim_v {
                    let column = head * dim_v + j;
                    let state = &mut state[column * dim_k..][..dim_k];
                    for (value, decay) in state.iter_mut().zip(decays.iter().cycle()) {
                        *value *= decay;
                    }
                    let recalled: f64 = state.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let change = rate * (row[2 * qk_width + column] - recalled);
                    for (value, k) in state.iter_mut().zip(&k) {
                        *value += k * change;
                    }
                    let answer: f64 = state.iter().zip(&q).map(|(s, q)| s * q).sum();
                    out.push(answer / (dim_k as f64).sqrt());
                }
            }
            out
        },
    };
    check(&layer, &mut Random::new(dim_k as u64));
}
