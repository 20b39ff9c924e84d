//! Routing to experts, the order of their rows, their products, and the sum of their results.

use tokenmill_cuda_exec::modules::type_suffix;
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, DevicePtr};
use tokenmill_testkit::Random;

use crate::{
    grid::pairs,
    kernels::{
        bench::{NULL, Sim, assert_close, is_float, random_matrix, types},
        matvec::{TOLERANCE, dot, upload},
    },
};

/// Describes how rows are routed.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag that the kernel takes"
)]
#[derive(Clone, Copy, Debug)]
struct Router {
    n_experts: usize,
    n_used: usize,
    is_sigmoid: bool,
    has_bias: bool,
    /// The groups, the used groups, and whether two experts measure a group.
    groups: Option<(usize, usize, bool)>,
    is_normalized: bool,
    has_scales: bool,
}

const PLAIN: Router = Router {
    n_experts: 8,
    n_used: 2,
    is_sigmoid: false,
    has_bias: false,
    groups: None,
    is_normalized: true,
    has_scales: false,
};

/// Returns the indices of the largest ranks, the first among equals.
fn largest(ranks: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)));
    order.truncate(n);
    order
}

/// Computes the choices and weights of one row by a plain loop.
fn choose(router: Router, scale: f64, logits: &[f32], bias: &[f32], scales: &[f32]) -> Vec<(usize, f64)> {
    let scores: Vec<f64> = if router.is_sigmoid {
        logits
            .iter()
            .map(|&x| 1.0 / (1.0 + f64::from(-x).exp()))
            .collect()
    } else {
        let powers: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp()).collect();
        powers.iter().map(|x| x / powers.iter().sum::<f64>()).collect()
    };
    let mut ranks = scores.clone();
    if router.has_bias {
        ranks
            .iter_mut()
            .zip(bias)
            .for_each(|(rank, &bias)| *rank += f64::from(bias));
    }
    if let Some((n_groups, n_used, takes_two)) = router.groups {
        let len = router.n_experts / n_groups;
        let measures: Vec<f64> = (ranks.chunks(len))
            .map(|group| {
                let best = largest(group, if takes_two { 2 } else { 1 });
                best.iter().map(|&at| group[at]).sum()
            })
            .collect();
        let used = largest(&measures, n_used);
        for (expert, rank) in ranks.iter_mut().enumerate() {
            if !used.contains(&(expert / len)) {
                *rank = f64::NEG_INFINITY;
            }
        }
    }
    let chosen = largest(&ranks, router.n_used);
    let sum: f64 = chosen.iter().map(|&expert| scores[expert]).sum();
    let divisor = if router.is_normalized { sum } else { 1.0 };
    let own_scale = |expert: usize| {
        if router.has_scales {
            f64::from(scales[expert])
        } else {
            1.0
        }
    };
    (chosen.into_iter())
        .map(|expert| (expert, scale * own_scale(expert) * scores[expert] / divisor))
        .collect()
}

#[test]
fn rows_choose_their_experts_as_a_plain_loop_does() {
    let groups = |n_groups, n_used, takes_two| Some((n_groups, n_used, takes_two));
    let routers = [
        PLAIN,
        Router {
            n_experts: 1,
            n_used: 1,
            ..PLAIN
        },
        Router {
            n_experts: 130,
            n_used: 9,
            is_normalized: false,
            ..PLAIN
        },
        Router {
            n_experts: 64,
            n_used: 64,
            has_scales: true,
            ..PLAIN
        },
        Router {
            is_sigmoid: true,
            has_bias: true,
            ..PLAIN
        },
        Router {
            n_experts: 1024,
            n_used: 8,
            is_sigmoid: true,
            is_normalized: false,
            ..PLAIN
        },
        Router {
            n_experts: 40,
            n_used: 6,
            groups: groups(8, 3, false),
            ..PLAIN
        },
        Router {
            n_experts: 256,
            n_used: 8,
            is_sigmoid: true,
            has_bias: true,
            groups: groups(8, 4, true),
            ..PLAIN
        },
        // A group of one expert has no second one.
        Router {
            n_experts: 40,
            n_used: 4,
            groups: groups(40, 5, true),
            ..PLAIN
        },
    ];
    let mut random = Random::new(31);
    for (router, has_ties) in routers
        .into_iter()
        .flat_map(|router| [(router, false), (router, true)])
    {
        let (n_rows, n_experts) = (3, router.n_experts);
        let mut logits: Vec<f32> = random
            .values(n_rows * n_experts)
            .iter()
            .map(|x| 3.0 * x)
            .collect();
        let mut bias = random.values(n_experts);
        if has_ties {
            // The first of equal experts is chosen. Zero has two signs.
            for x in &mut logits {
                *x = x.round();
            }
            bias.fill(0.0);
        }
        let scales = random.values(n_experts);
        let scale = 2.5;
        let mut sim = Sim::new();
        let [device_logits, device_bias, device_scales] =
            [&logits, &bias, &scales].map(|values| sim.f32s(values));
        let n_choices = n_rows * router.n_used;
        let [experts, weights] = [0, 1].map(|_| sim.room(4 * n_choices));
        let (n_groups, n_used_groups, takes_two) = router.groups.unwrap_or((1, 1, false));
        let arguments = Arguments::new()
            .ptr(device_logits)
            .i32(n_experts as i32)
            .i32(router.n_used as i32)
            .i32(router.is_sigmoid.into())
            .ptr(if router.has_bias { device_bias } else { NULL })
            .i32(n_groups as i32)
            .i32(n_used_groups as i32)
            .i32(takes_two.into())
            .i32(router.is_normalized.into())
            .f32(scale)
            .ptr(if router.has_scales { device_scales } else { NULL })
            .ptr(experts)
            .ptr(weights);
        sim.launch("route", "route_rows", [n_rows, 1, 1], 32, 0, &arguments);
        let expected: Vec<(usize, f64)> = (logits.chunks(n_experts))
            .flat_map(|logits| choose(router, scale.into(), logits, &bias, &scales))
            .collect();
        let found: Vec<usize> = (sim.read_u32s(experts, n_choices).iter())
            .map(|&expert| expert as usize)
            .collect();
        let chosen: Vec<usize> = expected.iter().map(|&(expert, _)| expert).collect();
        assert_eq!(found, chosen, "{router:?}, ties {has_ties}");
        let weighed: Vec<(f64, f64)> = expected
            .iter()
            .map(|&(_, weight)| (weight, weight.abs()))
            .collect();
        assert_close(
            &sim.read_f32s(weights, n_choices),
            &weighed,
            1e-5,
            &format!("{router:?}"),
        );
    }
}

/// The choices of rows, sorted by the kernel.
struct Sorted {
    n_choices: usize,
    n_runs: usize,
    places: DevicePtr,
    rows: DevicePtr,
    starts: DevicePtr,
    runs: DevicePtr,
}

fn sort(sim: &mut Sim, experts: &[u32], n_used: usize, n_experts: usize, run_len: usize) -> Sorted {
    let n_choices = experts.len();
    let n_runs = n_choices.min(n_experts + n_choices / run_len);
    let device_experts = sim.u32s(experts);
    let [places, rows] = [0, 1].map(|_| sim.room(4 * n_choices));
    let (starts, runs) = (sim.room(4 * (n_experts + 1)), sim.room(8 * n_runs));
    let mut arguments = Arguments::new().ptr(device_experts);
    for n in [n_choices, n_used, n_experts, run_len, n_runs] {
        arguments = arguments.i32(n as i32);
    }
    for list in [places, rows, starts, runs] {
        arguments = arguments.ptr(list);
    }
    let grid = [n_experts.div_ceil(8), 1, 1];
    sim.launch("route", "sort_choices", grid, 256, 0, &arguments);
    Sorted {
        n_choices,
        n_runs,
        places,
        rows,
        starts,
        runs,
    }
}

/// Different experts for each row.
fn random_choices(random: &mut Random, n_rows: usize, n_used: usize, n_experts: usize) -> Vec<u32> {
    (0..n_rows)
        .flat_map(|_| {
            let mut all: Vec<u32> = (0..n_experts as u32).collect();
            random.shuffle(&mut all);
            all.truncate(n_used);
            all
        })
        .collect()
}

#[test]
fn choices_are_sorted_by_expert_and_cut_into_runs() {
    let mut random = Random::new(32);
    for (n_rows, n_used, n_experts, run_len) in [
        (1, 1, 1, 1),
        (1, 8, 128, 1),
        (5, 2, 8, 4),
        (33, 3, 7, 8),
        (100, 1, 2, 8),
        (3, 4, 1024, 2),
        (70, 8, 40, 8),
    ] {
        let experts = random_choices(&mut random, n_rows, n_used, n_experts);
        let mut sim = Sim::new();
        let sorted = sort(&mut sim, &experts, n_used, n_experts, run_len);
        let mut order: Vec<usize> = (0..experts.len()).collect();
        order.sort_by_key(|&choice| experts[choice]);
        let places = sim.read_u32s(sorted.places, experts.len());
        assert!(
            order
                .iter()
                .enumerate()
                .all(|(place, &choice)| places[choice] as usize == place)
        );
        let rows: Vec<u32> = order.iter().map(|&choice| (choice / n_used) as u32).collect();
        assert_eq!(sim.read_u32s(sorted.rows, experts.len()), rows);
        let before =
            |expert: usize| experts.iter().filter(|&&other| (other as usize) < expert).count() as u32;
        let starts: Vec<u32> = (0..=n_experts).map(before).collect();
        assert_eq!(sim.read_u32s(sorted.starts, n_experts + 1), starts);
        let mut runs: Vec<u32> = (0..n_experts)
            .flat_map(|expert| {
                (starts[expert]..starts[expert + 1])
                    .step_by(run_len)
                    .flat_map(move |first| [expert as u32, first])
            })
            .collect();
        while runs.len() < 2 * sorted.n_runs {
            runs.extend([u32::MAX, 0]);
        }
        assert_eq!(sim.read_u32s(sorted.runs, 2 * sorted.n_runs), runs);
    }
}

/// Returns the kernel for runs of so many choices, the matrix rows of its thread blocks, and their threads.
pub(crate) fn kernel_of_runs(ty: TensorType, run_len: usize) -> (String, usize, usize) {
    match run_len {
        16 if is_float(ty) => ("experts_n16".to_owned(), 64, 256),
        16 => ("experts_n16".to_owned(), 64, 128),
        64 if is_float(ty) => ("experts_n64".to_owned(), 64, 256),
        64 => ("experts_n64".to_owned(), 128, 256),
        few => (format!("experts_m{few}"), 8, 128),
    }
}

/// Multiplies the choices of `n_rows` rows by two matrices of each expert, and compares with a plain loop.
fn check_products(
    ty: TensorType,
    run_len: usize,
    is_by_choice: bool,
    n_rows: usize,
    n_out: usize,
    n_in: usize,
) {
    let (n_experts, n_used) = (3, 2);
    let mut random = Random::new((n_in + n_out + n_rows) as u64);
    let mut sim = Sim::new();
    let choices = random_choices(&mut random, n_rows, n_used, n_experts);
    let sorted = sort(&mut sim, &choices, n_used, n_experts, run_len);
    let n_choices = sorted.n_choices;
    let n_inputs = if is_by_choice { n_choices } else { n_rows };
    let (input, exact) = upload(&mut sim, ty, &random.values(n_inputs * n_in), n_in);
    let matrices = [0, 1].map(|_| random_matrix(&mut random, ty, n_experts * n_out, n_in));
    let [first, second] = [0, 1].map(|job: usize| sim.matrix(ty, n_experts * n_out, n_in, &matrices[job].0));
    let bias = random.values(n_experts * n_out);
    let device_bias = sim.f32s(&bias);
    let outputs = [0, 1].map(|_| sim.room(n_choices * n_out * 4));
    let mut arguments = Arguments::new();
    for address in [first, second, NULL, device_bias, outputs[0], outputs[1]] {
        arguments = arguments.ptr(address);
    }
    for n in [n_experts, 0, n_out, n_in] {
        arguments = arguments.i32(n as i32);
    }
    let rows = if is_by_choice { NULL } else { sorted.rows };
    for list in [sorted.runs, sorted.starts, rows] {
        arguments = arguments.ptr(list);
    }
    let module = format!("experts_{}", type_suffix(ty).unwrap());
    let (kernel, tile, n_threads) = kernel_of_runs(ty, run_len);
    let grid = [n_out.div_ceil(tile), sorted.n_runs, 2];
    sim.launch(&module, &kernel, grid, n_threads, 0, &input.append(arguments));
    let places = sim.read_u32s(sorted.places, n_choices);
    for job in 0..2 {
        let mut expected = vec![(0.0, 0.0); n_choices * n_out];
        for (choice, &place) in places.iter().enumerate() {
            let (place, expert) = (place as usize, choices[choice] as usize);
            let input_row = if is_by_choice { place } else { choice / n_used };
            for row in 0..n_out {
                let (sum, magnitude) = dot(&matrices[job].1, &exact, n_in, expert * n_out + row, input_row);
                let bias = [0.0, f64::from(bias[expert * n_out + row])][job];
                expected[place * n_out + row] = (sum + bias, magnitude + bias.abs());
            }
        }
        let what = format!("{ty:?} {n_out}x{n_in}, matrix {job}, runs of {run_len}");
        assert_close(
            &sim.read_f32s(outputs[job], n_choices * n_out),
            &expected,
            TOLERANCE,
            &what,
        );
    }
}

#[test]
fn products_of_experts_of_every_type_match_a_plain_loop() {
    // Choices of a run, whether rows are by choice, rows, outputs, blocks of a row of weights, and weights that count as a block.
    let shapes = [
        (1, false, 1, 9, 3, 32),
        (2, true, 2, 16, 1, 1),
        (4, false, 5, 1, 5, 1),
        (8, true, 13, 10, 2, 128),
        (16, true, 11, 70, 1, 32),
        (64, false, 40, 9, 2, 32),
    ];
    let all = types().flat_map(|ty| shapes.map(|shape| (ty, shape)));
    for (ty, (run_len, is_by_choice, n_rows, n_out, n_blocks, least)) in pairs("products of experts", all) {
        let n_in = n_blocks * ty.block_len().max(least);
        check_products(ty, run_len, is_by_choice, n_rows, n_out, n_in);
    }
}

#[test]
fn float_rows_of_experts_may_have_any_length() {
    for ty in types().filter(|&ty| is_float(ty)) {
        for n_in in [1, 7, 30, 257] {
            check_products(ty, 4, false, 3, 5, n_in);
            check_products(ty, 16, false, 9, 5, n_in);
            check_products(ty, 64, true, 50, 66, n_in);
        }
    }
}

#[test]
fn what_experts_gave_is_weighed_and_added_to_what_was_there() {
    let (n_rows, n_used, width) = (3, 4, 300);
    let n_choices = n_rows * n_used;
    let mut random = Random::new(33);
    let mut sim = Sim::new();
    let (choices, weights) = (random.values(n_choices * width), random.values(n_choices));
    let (gates, carried) = (random.values(n_rows), random.values(n_rows * width));
    let mut places: Vec<u32> = (0..n_choices as u32).collect();
    random.shuffle(&mut places);
    let [device_choices, device_weights, device_gates] =
        [&choices, &weights, &gates].map(|values| sim.f32s(values));
    let device_places = sim.u32s(&places);
    for carry in 0..3 {
        // Memory that is overwritten need not be initialized.
        let output = if carry == 0 {
            sim.room(n_rows * width * 4)
        } else {
            sim.f32s(&carried)
        };
        let arguments = Arguments::new()
            .ptr(device_choices)
            .ptr(device_weights)
            .ptr(device_places)
            .i32(n_used as i32)
            .i32(width as i32)
            .i32(carry)
            .ptr(if carry == 2 { device_gates } else { NULL })
            .ptr(output);
        sim.launch(
            "route",
            "combine",
            [width.div_ceil(256), n_rows, 1],
            256,
            0,
            &arguments,
        );
        let expected: Vec<(f64, f64)> = (0..n_rows * width)
            .map(|at| {
                let row = at / width;
                let kept = match carry {
                    0 => 0.0,
                    1 => f64::from(carried[at]),
                    _ => f64::from(carried[at]) / (1.0 + f64::from(-gates[row]).exp()),
                };
                let terms = (row * n_used..(row + 1) * n_used).map(|choice| {
                    f64::from(weights[choice])
                        * f64::from(choices[places[choice] as usize * width + at % width])
                });
                terms.fold((kept, kept.abs()), |(sum, magnitude), term| {
                    (sum + term, magnitude + term.abs())
                })
            })
            .collect();
        assert_close(
            &sim.read_f32s(output, n_rows * width),
            &expected,
            1e-6,
            &format!("carry {carry}"),
        );
    }
}

#[test]
fn rows_of_choices_are_weighed_where_they_stand() {
    let (n_choices, width) = (7, 300);
    let mut random = Random::new(34);
    let mut sim = Sim::new();
    let (choices, weights) = (random.values(n_choices * width), random.values(n_choices));
    let mut places: Vec<u32> = (0..n_choices as u32).collect();
    random.shuffle(&mut places);
    let rows = sim.f32s(&choices);
    let arguments = Arguments::new()
        .ptr(rows)
        .ptr(sim.f32s(&weights))
        .ptr(sim.u32s(&places))
        .i32(width as i32);
    let grid = [width.div_ceil(256), n_choices, 1];
    sim.launch("route", "weigh_choices", grid, 256, 0, &arguments);
    let mut expected = choices;
    for (&place, weight) in places.iter().zip(weights) {
        for x in &mut expected[place as usize * width..][..width] {
            *x *= weight;
        }
    }
    assert_eq!(sim.read_f32s(rows, n_choices * width), expected);
}
