//! Rotation, norms of heads and the store of keys and values.

use half::f16;
use tokenmill_backend::{KvType, RopeAxes};
use tokenmill_ptx_sim::Arguments;
use tokenmill_quant::e4m3;
use tokenmill_testkit::Random;

use crate::kernels::bench::{NULL, Sim, assert_close};

/// Rotates a head by the model's definition.
fn rotate(head: &mut [f64], position: u32, inv_freqs: &[f32], magnitude: f64, is_neox: bool) {
    let half = inv_freqs.len();
    for (i, &freq) in inv_freqs.iter().enumerate() {
        // The angle is rounded to f32 in every backend.
        let (sin, cos) = f64::from(position as f32 * freq).sin_cos();
        let (first, second) = if is_neox {
            (i, i + half)
        } else {
            (2 * i, 2 * i + 1)
        };
        let (a, b) = (head[first], head[second]);
        head[first] = magnitude * (a * cos - b * sin);
        head[second] = magnitude * (a * sin + b * cos);
    }
}

struct Case {
    is_neox: bool,
    dims: [usize; 2],
    n_dims: usize,
    has_norms: bool,
    ty: KvType,
    rotates: bool,
}

fn check(case: &Case) {
    // A warp for each head, and warps that take several.
    for n_warps in [10, 3] {
        check_by(case, n_warps);
    }
}

fn check_by(case: &Case, n_warps: usize) {
    let &Case {
        is_neox,
        dims: [dim_k, dim_v],
        n_dims,
        has_norms,
        ty,
        rotates,
    } = case;
    let (n_tokens, n_heads, n_kv_heads) = (4, 6, 2);
    let mut random = Random::new((dim_k + n_dims) as u64);
    let mut sim = Sim::new();
    let q = random.values(n_tokens * n_heads * dim_k);
    let k = random.values(n_tokens * n_kv_heads * dim_k);
    let v = random.values(n_tokens * n_kv_heads * dim_v);
    // The last token is padding: it is rotated like the others and stored nowhere.
    let (positions, slots) = ([0u32, 5, 70_000, 9], [3u32, 40, 17, u32::MAX]);
    let inv_freqs: Vec<f32> = (0..n_dims / 2)
        .map(|i| 10_000f32.powf(-2.0 * i as f32 / n_dims as f32))
        .collect();
    let norms = [random.values(dim_k), random.values(dim_k)];
    let (row_k, row_v) = (dim_k.next_multiple_of(8), dim_v.next_multiple_of(8));
    let element = match ty {
        KvType::F32 => 4,
        KvType::F16 => 2,
        _ => 1,
    };
    let n_slots = 3 * 16;
    let device_q = sim.f32s(&q);
    let device_k = sim.f32s(&k);
    let device_v = sim.f32s(&v);
    let device_positions = sim.u32s(&positions);
    let device_slots = sim.u32s(&slots);
    let device_freqs = if rotates { sim.f32s(&inv_freqs) } else { NULL };
    let device_norms = [0, 1].map(|i: usize| if has_norms { sim.f32s(&norms[i]) } else { NULL });
    let k_store = sim.bytes(&vec![0xff; n_slots * n_kv_heads * row_k * element]);
    let v_store = sim.bytes(&vec![0xff; n_slots * n_kv_heads * row_v * element]);
    let mut arguments = Arguments::new()
        .ptr(device_q)
        .ptr(device_k)
        .ptr(device_v)
        .ptr(device_positions)
        .ptr(device_slots)
        .ptr(device_freqs)
        .f32(1.25)
        .i32(n_dims as i32)
        .i32(i32::from(is_neox))
        .ptr(device_norms[0])
        .ptr(device_norms[1])
        .f32(1e-6);
    for n in [n_heads, n_kv_heads, dim_k, dim_v] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = arguments.ptr(k_store).ptr(v_store);
    let (module, kernel) = match ty {
        KvType::F32 => ("rope_kv", "rope_kv_f32"),
        KvType::F16 => ("rope_kv", "rope_kv_f16"),
        _ => ("rope_kv_e4m3_e4m3", "rope_kv_of_types"),
    };
    sim.launch(module, kernel, [n_warps, n_tokens, 1], 32, 4 * dim_k, &arguments);

    let expected = |rows: &[f32], heads: usize, norm: &[f32]| -> Vec<(f64, f64)> {
        rows.chunks(dim_k)
            .enumerate()
            .flat_map(|(index, head)| {
                let mut head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
                if has_norms {
                    let mean = head.iter().map(|x| x * x).sum::<f64>() / dim_k as f64;
                    for (x, w) in head.iter_mut().zip(norm) {
                        *x *= f64::from(*w) / (mean + 1e-6).sqrt();
                    }
                }
                if rotates {
                    rotate(&mut head, positions[index / heads], &inv_freqs, 1.25, is_neox);
                }
                head.into_iter().map(|x| (x, 3.0))
            })
            .collect()
    };
    let expected_q = expected(&q, n_heads, &norms[0]);
    let expected_k = expected(&k, n_kv_heads, &norms[1]);
    // The sine of an angle of tens of thousands keeps about six digits.
    let found_k = sim.read_f32s(device_k, k.len());
    assert_close(&sim.read_f32s(device_q, q.len()), &expected_q, 1e-6, "q");
    assert_close(&found_k, &expected_k, 1e-6, "k");

    let stored = |store, row: usize, dim: usize, token: usize, g: usize| -> Vec<f32> {
        let slot = slots[token] as usize;
        let start = ((slot / 16 * n_kv_heads + g) * 16 + slot % 16) * row;
        let bytes = sim
            .memory
            .read_vec(store, n_slots * n_kv_heads * row * element)
            .unwrap();
        let values: Vec<f32> = bytes[start * element..][..row * element]
            .chunks(element)
            .map(|bytes| match *bytes {
                [code] => e4m3::decode(code),
                [a, b] => f16::from_le_bytes([a, b]).to_f32(),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => unreachable!("elements have 1, 2 or 4 bytes"),
            })
            .collect();
        assert!(values[dim..].iter().all(|&padding| padding == 0.0));
        values[..dim].to_vec()
    };
    let round = |x: &f32| match ty {
        KvType::F32 => *x,
        KvType::F16 => f16::from_f32(*x).to_f32(),
        _ => e4m3::decode(e4m3::encode(*x)),
    };
    for token in 0..3 {
        for g in 0..n_kv_heads {
            let index = token * n_kv_heads + g;
            let k_row: Vec<f32> = found_k[index * dim_k..][..dim_k].iter().map(round).collect();
            let v_row: Vec<f32> = v[index * dim_v..][..dim_v].iter().map(round).collect();
            assert_eq!(stored(k_store, row_k, dim_k, token, g), k_row);
            assert_eq!(stored(v_store, row_v, dim_v, token, g), v_row);
        }
    }
}

#[test]
fn heads_are_rotated_and_stored() {
    let base = || Case {
        is_neox: false,
        dims: [64, 64],
        n_dims: 64,
        has_norms: false,
        ty: KvType::F16,
        rotates: true,
    };
    check(&base());
    check(&Case {
        is_neox: true,
        dims: [128, 128],
        n_dims: 128,
        has_norms: true,
        ..base()
    });
    check(&Case {
        is_neox: true,
        dims: [80, 72],
        n_dims: 32,
        ty: KvType::F32,
        ..base()
    });
    check(&Case {
        dims: [6, 10],
        n_dims: 6,
        has_norms: true,
        ..base()
    });
    check(&Case {
        rotates: false,
        ..base()
    });
    check(&Case {
        dims: [64, 48],
        has_norms: true,
        ty: KvType::E4M3,
        ..base()
    });
}

/// Numbers of all sizes, including NaN and numbers out of the type's range, are stored as the host stores them.
#[test]
fn numbers_become_the_codes_that_the_host_gives_them() {
    const DIM: usize = 64;
    let mut sim = Sim::new();
    let mut random = Random::new(9);
    let mut rows: Vec<f32> = (0..3 * 16 * DIM)
        .map(|at| random.symmetric() * 2f32.powi(at as i32 % 24 - 14))
        .collect();
    let halves = (0..0x7e).map(|code| f32::midpoint(e4m3::decode(code), e4m3::decode(code + 1)));
    let others = [
        0.0,
        -0.0,
        449.0,
        -1e9,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    for (to, x) in rows.iter_mut().zip(halves.chain(others)) {
        *to = x;
    }
    let slots: Vec<u32> = (0..3 * 16).collect();
    let store = sim.room(rows.len());
    let mut arguments = Arguments::new()
        .ptr(NULL)
        .ptr(sim.f32s(&rows))
        .ptr(NULL)
        .ptr(sim.u32s(&slots))
        .ptr(sim.u32s(&slots))
        .ptr(NULL)
        .f32(1.0)
        .i32(0)
        .i32(0)
        .ptr(NULL)
        .ptr(NULL)
        .f32(0.0);
    for n in [0, 1, DIM, DIM] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = arguments.ptr(store).ptr(NULL);
    let grid = [1, slots.len(), 1];
    sim.launch(
        "rope_kv_e4m3_e4m3",
        "rope_kv_of_types",
        grid,
        32,
        4 * DIM,
        &arguments,
    );
    let found = sim.memory.read_vec(store, rows.len()).unwrap();
    for (x, (found, expected)) in rows
        .iter()
        .zip(found.iter().zip(rows.iter().map(|x| e4m3::encode(*x))))
    {
        assert_eq!(*found, expected, "{x:e}");
    }
}

#[test]
fn rows_are_rotated_alone() {
    let (head_dim, n_heads, positions) = (48, 3, [2u32, 100]);
    let mut random = Random::new(1);
    let mut sim = Sim::new();
    let rows = random.values(2 * n_heads * head_dim);
    let inv_freqs: Vec<f32> = (0..16).map(|i| 0.9f32.powi(i)).collect();
    let (device, freqs, device_positions) = (sim.f32s(&rows), sim.f32s(&inv_freqs), sim.u32s(&positions));
    let mut arguments = Arguments::new()
        .ptr(device)
        .ptr(device_positions)
        .ptr(freqs)
        .f32(1.0);
    for n in [32, 1, head_dim, n_heads * head_dim] {
        arguments = arguments.i32(n as i32);
    }
    sim.launch("rope_kv", "rope", [n_heads, 2, 1], 32, 0, &arguments);
    let expected: Vec<(f64, f64)> = rows
        .chunks(head_dim)
        .enumerate()
        .flat_map(|(index, head)| {
            let mut head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            rotate(&mut head, positions[index / n_heads], &inv_freqs, 1.0, true);
            head.into_iter().map(|x| (x, 1.0))
        })
        .collect();
    assert_close(&sim.read_f32s(device, rows.len()), &expected, 1e-6, "rope");
}

#[test]
fn each_pair_is_turned_by_the_position_of_its_axis() {
    let (head_dim, n_heads, n_pairs) = (48, 3, 16);
    let positions: [[u32; 3]; 3] = [[2, 7, 40], [100, 3, 0], [5, 5, 5]];
    let mut random = Random::new(1);
    let rows = random.values(positions.len() * n_heads * head_dim);
    let inv_freqs: Vec<f32> = (0..n_pairs).map(|i| 0.9f32.powi(i)).collect();
    for (axes, takes_turns, of_axes) in [
        (RopeAxes::Sections([6, 6, 4]), 0, [6, 6, 4]),
        (RopeAxes::Interleaved([8, 5, 3]), 1, [8, 5, 3]),
    ] {
        let mut sim = Sim::new();
        let (device, freqs) = (sim.f32s(&rows), sim.f32s(&inv_freqs));
        let device_positions = sim.u32s(positions.as_flattened());
        let mut arguments = Arguments::new()
            .ptr(device)
            .ptr(device_positions)
            .ptr(freqs)
            .f32(1.0);
        for n in [
            2 * n_pairs,
            1,
            head_dim as i32,
            (n_heads * head_dim) as i32,
            takes_turns,
        ] {
            arguments = arguments.i32(n);
        }
        for n in of_axes {
            arguments = arguments.i32(n);
        }
        let grid = [n_heads, positions.len(), 1];
        sim.launch("rope_kv", "rope_axes", grid, 32, 0, &arguments);
        let mut expected: Vec<(f64, f64)> = Vec::new();
        for (index, head) in rows.chunks(head_dim).enumerate() {
            let mut turned: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            // Rotates by each axis; each pair is then taken from the rotation by its own axis.
            let by_axis = positions[index / n_heads].map(|position| {
                let mut head = turned.clone();
                rotate(&mut head, position, &inv_freqs, 1.0, true);
                head
            });
            for pair in 0..n_pairs as usize {
                let axis = axes.of_pair(pair).expect("an axis for each pair");
                for place in [pair, pair + n_pairs as usize] {
                    turned[place] = by_axis[axis][place];
                }
            }
            expected.extend(turned.into_iter().map(|x| (x, 1.0)));
        }
        let found = sim.read_f32s(device, rows.len());
        assert_close(&found, &expected, 1e-6, "rope_axes");
    }
}
