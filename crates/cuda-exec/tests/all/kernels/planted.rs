//! Plants bugs in the shipped kernels. Each class of bugs must be found, so that the absence of findings elsewhere means
//! something.
//!
//! The PTX that ships is changed in one place, as a slip in the source would change it.

use tokenmill_cuda_exec::modules;
use tokenmill_ptx_sim::{
    Arguments, Conflict, DeviceMemory, DevicePtr, FindingKind, LaunchConfig, Module, launch,
};

use crate::kernels::bench::NULL;

const WIDTH: usize = 512;
const N_ROWS: usize = 2;

/// Sizes and offsets of the buffers that `add_norm` runs on.
struct Buffers {
    hidden_len: usize,
    /// Added to the address of the weights.
    weight_shift: u64,
    writes_hidden: bool,
}

const RIGHT: Buffers = Buffers {
    hidden_len: N_ROWS * WIDTH,
    weight_shift: 0,
    writes_hidden: true,
};

/// Returns the simulator's findings in `add_norm` after `plant` changed its text.
fn findings(buffers: &Buffers, plant: impl Fn(&str) -> String) -> Vec<FindingKind> {
    let text = modules::ptx("norm").expect("a module of that name");
    let changed = plant(&text);
    let mut memory = DeviceMemory::new();
    let module = Module::load(&changed, &mut memory).expect("the changed text is PTX");
    let numbers = |memory: &mut DeviceMemory, len: usize| {
        memory.alloc_with(&vec![0x3f; 4 * len]).expect("a little memory")
    };
    let hidden = if buffers.writes_hidden {
        numbers(&mut memory, buffers.hidden_len)
    } else {
        memory
            .alloc(4 * buffers.hidden_len as u64)
            .expect("a little memory")
    };
    let weight = numbers(&mut memory, WIDTH);
    let y = numbers(&mut memory, N_ROWS * WIDTH);
    let arguments = Arguments::new()
        .ptr(hidden)
        .ptr(NULL)
        .f32(1.0)
        .ptr(DevicePtr(weight.0 + buffers.weight_shift))
        .ptr(NULL)
        .i32(0)
        .f32(1e-5)
        .i32(WIDTH as i32)
        .ptr(y)
        .ptr(NULL)
        .ptr(NULL);
    let config = LaunchConfig::new([N_ROWS as u32, 1, 1], [256, 1, 1]);
    let kernel = module.kernel("add_norm").expect("the kernel is there");
    let report = launch(kernel, &memory, &config, &arguments).expect("a launch that fits");
    report.findings.into_iter().map(|finding| finding.kind).collect()
}

fn unchanged(text: &str) -> String {
    text.to_owned()
}

/// Replaces the first occurrence, which must exist.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the kernel has no `{from}` any more");
    text.replacen(from, to, 1)
}

/// Replaces every occurrence.
fn replaced_all(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the kernel has no `{from}` any more");
    text.replace(from, to)
}

#[test]
fn the_kernel_as_it_ships_has_none() {
    assert_eq!(findings(&RIGHT, unchanged), []);
}

#[test]
fn a_missing_barrier_is_a_race_between_warps() {
    // Barriers of the other kernels are removed too, which does not matter here.
    let found = findings(&RIGHT, |text| replaced_all(text, "bar.sync \t0;", ""));
    let is_race = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::SharedRace { .. } | FindingKind::UninitializedRead { .. }
        )
    };
    assert!(found.iter().any(is_race), "{found:?}");
}

#[test]
fn a_wrong_block_index_is_a_race_between_thread_blocks() {
    let found = findings(&RIGHT, |text| replaced(text, "%ctaid.x;", "%tid.z;"));
    let is_race = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::GlobalRace {
                conflict: Conflict::WriteWrite | Conflict::ReadWrite | Conflict::WriteRead,
                ..
            }
        )
    };
    assert!(found.iter().any(is_race), "{found:?}");
}

#[test]
fn a_barrier_that_half_a_warp_skips_is_divergent() {
    let found = findings(&RIGHT, |text| {
        // Other kernels of the module have barriers too, but not these registers.
        let end = text
            .find(".visible .entry norm_heads(")
            .expect("the kernel after it");
        let (add_norm, others) = text.split_at(end);
        let with_registers = replaced(
            add_norm,
            ".reg .pred \t%p<79>;",
            ".reg .pred \t%p<79>;\n.reg .pred %planted<1>;\n.reg .b32 %lane<2>;",
        );
        let planted = replaced_all(
            &with_registers,
            "bar.sync \t0;",
            "mov.u32 %lane0, %tid.x;\nand.b32 %lane1, %lane0, 31;\nsetp.lt.u32 %planted0, %lane1, 16;\n@%planted0 bar.sync 0;",
        );
        planted + others
    });
    assert!(
        found
            .iter()
            .any(|kind| matches!(kind, FindingKind::DivergentBarrier { .. })),
        "{found:?}"
    );
}

#[test]
fn a_buffer_that_is_too_short_is_left_by_the_kernel() {
    let short = Buffers {
        hidden_len: N_ROWS * WIDTH - 1,
        ..RIGHT
    };
    let found = findings(&short, unchanged);
    assert!(
        matches!(found[..], [FindingKind::OutOfBounds { .. }]),
        "{found:?}"
    );
}

#[test]
fn an_address_between_two_numbers_is_misaligned() {
    let shifted = Buffers {
        weight_shift: 2,
        ..RIGHT
    };
    let found = findings(&shifted, unchanged);
    assert!(
        found
            .iter()
            .any(|kind| matches!(kind, FindingKind::Misaligned { .. })),
        "{found:?}"
    );
}

#[test]
fn memory_that_nobody_wrote_is_not_read_in_silence() {
    let unwritten = Buffers {
        writes_hidden: false,
        ..RIGHT
    };
    let found = findings(&unwritten, unchanged);
    assert!(
        found
            .iter()
            .any(|kind| matches!(kind, FindingKind::UninitializedRead { .. })),
        "{found:?}"
    );
}

#[test]
fn a_missing_wait_for_an_asynchronous_copy_is_found() {
    const N_TOKENS: usize = 64;
    const DIM: usize = 64;
    let run = |plant: &dyn Fn(&str) -> String| -> Vec<FindingKind> {
        let text = modules::ptx("attention_prefill").expect("a module of that name");
        let mut memory = DeviceMemory::new();
        let module = Module::load(&plant(&text), &mut memory).expect("the changed text is PTX");
        let mut bytes = |n: usize| memory.alloc_with(&vec![0; n]).expect("a little memory");
        let words = |memory: &mut DeviceMemory, values: &[u32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            memory.alloc_with(&bytes).expect("a little memory")
        };
        let (q, out) = (bytes(4 * N_TOKENS * DIM), bytes(4 * N_TOKENS * DIM));
        let (k, v) = (bytes(2 * N_TOKENS * DIM), bytes(2 * N_TOKENS * DIM));
        let positions: Vec<u32> = (0..N_TOKENS as u32).collect();
        let pages: Vec<u32> = (0..N_TOKENS as u32 / 16).collect();
        let arguments = Arguments::new()
            .ptr(q)
            .ptr(out)
            .ptr(words(&mut memory, &positions))
            .ptr(words(&mut memory, &[0, N_TOKENS as u32]))
            .ptr(words(&mut memory, &[0, N_TOKENS as u32 / 16]))
            .ptr(words(&mut memory, &pages))
            .ptr(k)
            .ptr(v)
            .ptr(NULL)
            .ptr(NULL)
            .f32(0.125)
            .f32(0.0)
            .i32(0)
            .i32(0)
            .i32(0)
            .i32(1)
            .i32(1)
            .i32(DIM as i32)
            .i32(DIM as i32);
        let mut config = LaunchConfig::new([1, 1, 1], [256, 1, 1]);
        config.shared_bytes = 2 * 64 * (DIM as u32 + 8) * 2;
        let kernel = module
            .kernel("attention_prefill_d64")
            .expect("the kernel is there");
        let report = launch(kernel, &memory, &config, &arguments).expect("a launch that fits");
        report.findings.into_iter().map(|finding| finding.kind).collect()
    };
    assert_eq!(run(&unchanged), []);
    let found = run(&|text| text.replace("cp.async.wait_group 0;", ""));
    assert!(
        found
            .iter()
            .any(|kind| matches!(kind, FindingKind::UnfinishedCopy { .. })),
        "{found:?}"
    );
}

#[test]
fn a_missing_barrier_between_the_scores_of_warps_is_a_race() {
    const DIM: usize = 64;
    const N_HEADS: usize = 4;
    let run = |plant: &dyn Fn(&str) -> String| -> Vec<FindingKind> {
        let text = modules::ptx("latent_attention").expect("a module of that name");
        let mut memory = DeviceMemory::new();
        let module = Module::load(&plant(&text), &mut memory).expect("the changed text is PTX");
        let mut words = |values: &[u32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            memory.alloc_with(&bytes).expect("a little memory")
        };
        let [q, store] = [N_HEADS * DIM, 3 * 16 * DIM / 2].map(|n_words| words(&vec![0; n_words]));
        let partial = words(&vec![0; N_HEADS * (DIM + 2)]);
        // One token at position 39, whose context takes two tiles.
        let [positions, seq_of, page_starts, pages] =
            [&[39u32][..], &[0], &[0, 3], &[2, 0, 1]].map(&mut words);
        let arguments = Arguments::new()
            .ptr(q)
            .ptr(NULL)
            .ptr(positions)
            .ptr(seq_of)
            .ptr(NULL)
            .ptr(page_starts)
            .ptr(pages)
            .ptr(store)
            .f32(0.125)
            .i32(N_HEADS as i32)
            .i32(DIM as i32)
            .i32(DIM as i32)
            .i32(64)
            .i32(1)
            .ptr(partial);
        let mut config = LaunchConfig::new([1, 1, 1], [128, 1, 1]);
        config.shared_bytes = 2 * 32 * (128 + 8) * 2 + 16 * 160 * 4;
        let kernel = module.kernel("latent_d128_r16").expect("the kernel is there");
        let report = launch(kernel, &memory, &config, &arguments).expect("a launch that fits");
        report.findings.into_iter().map(|finding| finding.kind).collect()
    };
    assert_eq!(run(&unchanged), []);
    let found = run(&|text| {
        // The second barrier of the kernel's loop is between the scores and their sums.
        let start = text.find(".entry latent_d128_r16(").expect("the kernel is there");
        let mut barriers = text[start..].match_indices("bar.sync \t0;");
        let (at, barrier) = barriers.nth(1).expect("the loop has two");
        let (before, after) = text.split_at(start + at);
        format!("{before}{}", &after[barrier.len()..])
    });
    let is_race = |kind: &FindingKind| {
        matches!(
            kind,
            FindingKind::SharedRace { .. } | FindingKind::UninitializedRead { .. }
        )
    };
    assert!(found.iter().any(is_race), "{found:?}");
}
