//! Host and device in parallel: steps in two parts, and shared networks next to the host's experts. Only the time changes.

use std::sync::{Arc, PoisonError};

use tokenmill_backend::{
    Backend, Executor, ForwardBatch, KvType, RowMask, RowOutput, SampleRow, Side, SplitOperations,
    StepOutput, TokenSource,
};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_placed::{LayerPlacement, Overlap, Placed, Placement, StepThresholds};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};
use tokenmill_testkit::{
    Clock, ClockedBackend, EXPERT_VARIANTS, MEMORY_KINDS, ProductTime, SharedClock, TinyModel,
    engines::{self, Loadable, Loaded},
    generate::{all_logits, greedy},
    tiny_experts, tiny_llama,
};

use crate::contract::wait_until_no_page_is_held;

const N_LAYERS: usize = 4;

fn cpu() -> CpuBackend {
    engines::cpu(2)
}

fn model() -> TinyModel {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    let layer = descriptor.layers[0].clone();
    descriptor.layers.resize(N_LAYERS, layer);
    TinyModel::random(descriptor, TensorType::F16, 5)
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(256),
        max_batch_tokens: 256,
        max_batch_seqs: 8,
        max_logit_rows: 256,
        n_pages: Some(64),
        kv_type: KvType::F16,
        ..ModelOptions::default()
    }
}

/// Returns a network with its last two layers on the device.
fn split<H: SplitOperations, D: SplitOperations>(
    model: &TinyModel,
    (host, device): (H, D),
    overlap: Overlap,
) -> Loaded<Placed<H, D>>
where
    Placed<H, D>: Loadable,
{
    let placement = Placement::last_layers(&model.descriptor.shape(), 2);
    let mut backend = Placed::new(host, device, placement);
    backend.set_overlap(overlap);
    engines::tiny(model, backend, &options())
}

/// Two sides with known times.
fn clocked(host: ProductTime, device: ProductTime) -> ((ClockedBackend, ClockedBackend), SharedClock) {
    let clock = SharedClock::default();
    let side = |side, time| ClockedBackend::new(side, time, clock.clone());
    ((side(Side::Host, host), side(Side::Device, device)), clock)
}

fn time(of_row: u64, at_least: u64) -> ProductTime {
    ProductTime { of_row, at_least }
}

fn read<T>(clock: &SharedClock, of: impl Fn(&mut Clock) -> T) -> T {
    of(&mut clock.lock().unwrap_or_else(PoisonError::into_inner))
}

fn ids(n: usize, own: usize) -> Vec<u32> {
    (0..n as u32).map(|idx| (idx * 7 + 3 + own as u32) % 96).collect()
}

/// Returns a step of prompts with so many tokens, whose last rows are sampled.
fn prompts(lens: &[usize]) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    let mut n_pages = 0;
    for (seq_idx, &len) in lens.iter().enumerate() {
        let pages: Vec<u32> = (n_pages..n_pages + len.div_ceil(16) as u32).collect();
        n_pages += pages.len() as u32;
        batch.push_sequence(ids(len, seq_idx).into_iter().map(TokenSource::Id), 0, &pages);
        batch.want_last(RowOutput::Sample(SampleRow {
            params: Arc::default(),
            history: 0..0,
            n_prompt: 0,
            mask: RowMask::Any,
        }));
    }
    batch
}

/// Returns the duration of a step, and the part of it in which both sides worked.
fn times(host: ProductTime, device: ProductTime, overlap: Overlap, lens: &[usize]) -> (u64, u64) {
    let model = model();
    let (sides, clock) = clocked(host, device);
    let mut executor = split(&model, sides, overlap);
    let ticket = executor.submit(&prompts(lens)).unwrap();
    executor.wait(ticket, &mut StepOutput::default()).unwrap();
    read(&clock, |clock| (clock.now, clock.shared))
}

#[test]
fn the_host_computes_the_second_part_while_the_device_has_the_first() {
    for lens in [&[128][..], &[64, 64], &[1, 1, 150, 40], &[256]] {
        // Products whose time depends on rows.
        let (whole, shared) = times(time(3, 0), time(1, 0), Overlap::Never, lens);
        assert_eq!(shared, 0, "{lens:?}");
        let (in_parts, shared) = times(time(3, 0), time(1, 0), Overlap::Auto, lens);
        assert!(shared > 0, "{lens:?}");
        // A part without a result computes no queries in the last layer.
        let n_without = if lens.len() == 1 { lens[0] as u64 / 2 } else { 0 };
        assert_eq!(in_parts, whole - shared - n_without, "{lens:?}");
        // The device has a quarter of the work minus rows of the last layer that are not read, and about half of that is
        // hidden.
        assert!(shared * 20 > whole, "{lens:?}: {shared} of {whole}");
    }
}

#[test]
fn steps_that_are_read_more_than_computed_stay_whole() {
    for lens in [&[1][..], &[1; 8], &[100], &[127]] {
        let of = |overlap| times(time(1, 64), time(1, 256), overlap, lens);
        assert_eq!(of(Overlap::Auto), of(Overlap::Never), "{lens:?}");
    }
    // Such a step would take longer in two parts if the device has most of the work.
    let (whole, _) = times(time(1, 64), time(1, 256), Overlap::Never, &[1; 8]);
    let (in_parts, _) = times(time(1, 64), time(1, 256), Overlap::From(4), &[1; 8]);
    assert!(in_parts > whole, "{in_parts} and {whole}");
}

#[test]
fn a_device_that_is_the_host_or_not_behind_it_computes_whole_steps() {
    let model = model();
    let mut alternating = vec![LayerPlacement::whole(Side::Host); N_LAYERS];
    alternating[1] = LayerPlacement::whole(Side::Device);
    let (sides, clock) = clocked(time(3, 0), time(1, 0));
    let placement = Placement::new(&model.descriptor.shape(), alternating);
    let backend = Placed::new(sides.0, sides.1, placement);
    let mut executor = engines::tiny(&model, backend, &options());
    let ticket = executor.submit(&prompts(&[256])).unwrap();
    executor.wait(ticket, &mut StepOutput::default()).unwrap();
    assert_eq!(read(&clock, |clock| clock.shared), 0);
    // Two backends of the host do not work in parallel.
    let executor = split(&model, (cpu(), cpu()), Overlap::Auto);
    assert!(!executor.backend().device().works_apart());
}

#[test]
fn parts_compute_the_bits_of_the_whole_step() {
    for (name, change) in MEMORY_KINDS {
        let mut descriptor = model().descriptor;
        change(&mut descriptor);
        let model = TinyModel::random(descriptor, TensorType::F16, 11);
        let outcome = |overlap| {
            let placement = Placement::last_layers(&model.descriptor.shape(), 1);
            let mut backend = Placed::new(cpu(), cpu(), placement);
            backend.set_overlap(overlap);
            let mut executor = engines::tiny(&model, backend, &options());
            let logits = all_logits(&mut executor, &ids(200, 0)).unwrap();
            let tokens = greedy(&mut executor, &ids(130, 1), 8).unwrap();
            (
                logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>(),
                tokens,
            )
        };
        let expected = outcome(Overlap::Never);
        // 200 tokens are divided at 128, and 130 at 64.
        for n_rows in [1, 64, 66] {
            assert_eq!(outcome(Overlap::From(n_rows)), expected, "{name}, {n_rows} rows");
        }
    }
}

fn engine<H, D>(model: &TinyModel, sides: (H, D), overlap: Overlap) -> Engine
where
    H: SplitOperations + 'static,
    D: SplitOperations + 'static,
    Placed<H, D>: Loadable,
{
    Engine::start(split(model, sides, overlap), EngineConfig::default())
}

#[test]
fn parts_have_the_same_bits_where_results_do_not_depend_on_the_batch() {
    let model = model();
    let logits = |overlap| {
        let simulator = Simulator::new(&SimOptions::default());
        let device = engines::gpu_of(&simulator).with_batch_invariance(true);
        let mut executor = split(&model, (cpu(), device), overlap);
        let logits = all_logits(&mut executor, &ids(130, 0)).unwrap();
        logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
    };
    assert!(logits(Overlap::From(60)) == logits(Overlap::Never));
}

fn generate(engine: &Engine, prompts: &[Vec<u32>]) -> Vec<Option<Vec<u32>>> {
    let params = GenerateParams {
        max_tokens: Some(5),
        ..GenerateParams::default()
    };
    (engine.batch_generate(prompts, &params).unwrap().into_iter())
        .map(|output| output.ok().map(|output| output.tokens))
        .collect()
}

#[test]
fn the_devices_part_of_decode_steps_is_replayed_behind_prompts_in_parts() {
    let model = model();
    let prompts = [ids(150, 0)];
    let run = |overlap| {
        let simulator = Simulator::new(&SimOptions::default());
        let engine = engine(&model, (cpu(), engines::gpu_of(&simulator)), overlap);
        let tokens = generate(&engine, &prompts);
        assert!(!simulator.is_capturing());
        (tokens, simulator.graph_counts())
    };
    let whole = run(Overlap::Never);
    assert!(whole.0.iter().all(Option::is_some));
    assert!(whole.1.1 > 0, "nothing was replayed");
    // The prompt is divided, steps of one row are not.
    assert_eq!(run(Overlap::From(60)), whole);
}

/// Compares the tokens of a step's rows, with both sides' feed-forward networks on the device except in steps
/// that decode.
#[test]
fn parts_of_rows_that_decode_are_not_taken_for_steps_of_another_route() {
    let model = model();
    let tokens = |overlap| {
        let simulator = Simulator::new(&SimOptions::default());
        let placement = Placement::last_layers(&model.descriptor.shape(), 2).with_min_device_tokens(2);
        let mut backend = Placed::new(cpu(), engines::gpu_of(&simulator), placement);
        backend.set_thresholds(StepThresholds {
            decode: usize::MAX,
            other: 1,
        });
        backend.set_overlap(overlap);
        let mut executor = engines::tiny(&model, backend, &options());
        // The second has as many decode rows as the others, and as many rows of a prompt.
        let steps = [&[1, 1, 1, 1][..], &[1, 1, 1, 1], &[1, 1, 1, 1, 4], &[1, 1, 1, 1]];
        steps.map(|lens| {
            let mut output = StepOutput::default();
            let mut batch = prompts(lens);
            if lens.len() > 4 {
                // Other tokens than before, so that no stale value is right by chance.
                batch.tokens = (0..8).map(|idx| TokenSource::Id(11 * idx + 17)).collect();
            }
            let ticket = executor.submit(&batch).unwrap();
            executor.wait(ticket, &mut output).unwrap();
            output
                .sampled
                .iter()
                .map(|sampled| sampled.as_ref().map(|sampled| sampled.as_ref().unwrap().id))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(tokens(Overlap::From(4)), tokens(Overlap::Never));
}

#[test]
fn a_part_that_fails_on_the_device_puts_all_pages_back() {
    let model = model();
    // Each prompt is divided, whether or not they arrive in one step.
    let prompts = [ids(150, 0), ids(140, 1)];
    // No pages of these prompts are cached.
    let others = [ids(150, 5), ids(140, 6)];
    for fault in [
        Fault::Launch { after: 2 },
        Fault::Launch { after: 40 },
        Fault::Download { after: 0 },
        Fault::Download { after: 1 },
    ] {
        let simulator = Simulator::new(&SimOptions::default());
        let engine = engine(
            &model,
            (cpu(), engines::gpu_of(&simulator).with_batch_invariance(true)),
            Overlap::From(60),
        );
        let expected = generate(&engine, &prompts);
        simulator.inject(fault);
        let found = generate(&engine, &others);
        assert!(found.iter().any(Option::is_none), "{fault:?}");
        wait_until_no_page_is_held(&engine);
        assert_eq!(generate(&engine, &prompts), expected, "{fault:?}");
    }
}

#[test]
fn a_part_that_fails_on_the_host_puts_all_pages_back() {
    let model = model();
    let prompts = [ids(150, 0), ids(140, 1)];
    // Each prompt is divided, whether or not they come in one step. The host's products of one part: those of two layers.
    let n_products = {
        let (sides, clock) = clocked(time(1, 0), time(0, 0));
        let mut executor = split(&model, sides, Overlap::Never);
        let ticket = executor.submit(&self::prompts(&[1])).unwrap();
        executor.wait(ticket, &mut StepOutput::default()).unwrap();
        read(&clock, |clock| clock.now) as usize
    };
    for n_succeed in [0, n_products - 1, n_products, n_products + 3] {
        let (sides, clock) = clocked(time(1, 0), time(1, 0));
        let engine = engine(&model, sides, Overlap::Auto);
        read(&clock, |clock| clock.host_fails_after = Some(n_succeed));
        let found = generate(&engine, &prompts);
        assert!(found.iter().any(Option::is_none), "{n_succeed}");
        assert_eq!(read(&clock, |clock| clock.host_fails_after), None);
        wait_until_no_page_is_held(&engine);
        let again = generate(&engine, &prompts);
        assert!(again.iter().all(Option::is_some), "{n_succeed}");
        assert!(
            read(&clock, |clock| clock.shared) > 0,
            "{n_succeed}: no part was computed"
        );
    }
}

/// Returns the networks with experts next to a network shared by all tokens, and the products of that network.
fn shared_networks() -> Vec<(&'static str, TinyModel, u64)> {
    let n_products = |name: &str| match name {
        // Gate, up and down.
        "a shared network" | "experts with rows of their own next to a shared network" => Some(3),
        "a shared network with a gate" => Some(4),
        _ => None,
    };
    let of = |&(name, change): &(&'static str, fn(&mut _))| {
        let n_products = n_products(name)?;
        let mut descriptor = tiny_experts();
        change(&mut descriptor);
        descriptor.layers.truncate(1);
        let layer = descriptor.layers[0].clone();
        descriptor.layers.resize(N_LAYERS, layer);
        Some((
            name,
            TinyModel::random(descriptor, TensorType::F16, 5),
            n_products,
        ))
    };
    let networks: Vec<_> = EXPERT_VARIANTS.iter().filter_map(of).collect();
    assert_eq!(networks.len(), 3);
    networks
}

/// Returns a network with only its experts on the host.
fn with_host_experts<H: SplitOperations, D: SplitOperations>(
    model: &TinyModel,
    sides: (H, D),
) -> Loaded<Placed<H, D>>
where
    Placed<H, D>: Loadable,
{
    let place = LayerPlacement {
        experts: Side::Host,
        ..LayerPlacement::whole(Side::Device)
    };
    with_layers(model, sides, place)
}

/// Returns a network whose layers are all placed in the same way.
fn with_layers<H: SplitOperations, D: SplitOperations>(
    model: &TinyModel,
    (host, device): (H, D),
    place: LayerPlacement,
) -> Loaded<Placed<H, D>>
where
    Placed<H, D>: Loadable,
{
    let placement = Placement::new(&model.descriptor.shape(), vec![place; N_LAYERS]);
    let backend = Placed::new(host, device, placement);
    engines::tiny(model, backend, &options())
}

#[test]
fn the_device_computes_shared_networks_while_the_host_has_the_experts() {
    for (name, model, n_products) in shared_networks() {
        let of = |host, device, lens: &[usize]| {
            let (sides, clock) = clocked(time(host, 0), time(device, 0));
            let mut executor = with_host_experts(&model, sides);
            let ticket = executor.submit(&prompts(lens)).unwrap();
            executor.wait(ticket, &mut StepOutput::default()).unwrap();
            read(&clock, |clock| (clock.now, clock.shared))
        };
        for lens in [&[1][..], &[1; 8], &[60], &[200, 30]] {
            let (host_alone, device_alone) = (of(50, 0, lens).0, of(0, 1, lens).0);
            let (both, shared) = of(50, 1, lens);
            assert_eq!(both, host_alone + device_alone - shared, "{name}, {lens:?}");
            // The last layer computes only the rows that are read.
            let (n_rows, n_outputs) = (lens.iter().sum::<usize>(), lens.len());
            let all_rows = (n_rows * (N_LAYERS - 1) + n_outputs) as u64;
            assert_eq!(shared, all_rows * n_products, "{name}, {lens:?}");
        }
    }
}

#[test]
fn the_host_computes_shared_networks_while_the_device_has_the_experts() {
    let place = LayerPlacement {
        experts: Side::Device,
        ..LayerPlacement::whole(Side::Host)
    };
    for (name, model, n_products) in shared_networks() {
        let (sides, clock) = clocked(time(1, 0), time(50, 0));
        let mut executor = with_layers(&model, sides, place);
        let ticket = executor.submit(&prompts(&[1; 8])).unwrap();
        executor.wait(ticket, &mut StepOutput::default()).unwrap();
        let shared = read(&clock, |clock| clock.shared);
        assert_eq!(shared, 8 * N_LAYERS as u64 * n_products, "{name}");
    }
}

#[test]
fn steps_with_shared_networks_on_the_device_give_the_same_tokens_and_are_replayed() {
    for (name, model, _) in shared_networks() {
        let prompt = [ids(9, 0)];
        let engine = Engine::start(engines::tiny(&model, cpu(), &options()), EngineConfig::default());
        let expected = generate(&engine, &prompt);
        let simulator = Simulator::new(&SimOptions::default());
        let executor = with_host_experts(&model, (cpu(), engines::gpu_of(&simulator)));
        let engine = Engine::start(executor, EngineConfig::default());
        assert_eq!(generate(&engine, &prompt), expected, "{name}");
        let (_, n_replayed) = simulator.graph_counts();
        assert!(n_replayed > 0, "{name}: nothing was replayed");
        assert!(!simulator.is_capturing());
    }
}

#[test]
fn experts_that_fail_while_the_device_has_the_shared_network_put_all_pages_back() {
    let (_, model, _) = shared_networks().remove(1);
    for n_succeed in [0, 2, 4] {
        let (sides, clock) = clocked(time(1, 0), time(1, 0));
        let engine = Engine::start(with_host_experts(&model, sides), EngineConfig::default());
        read(&clock, |clock| clock.host_fails_after = Some(n_succeed));
        let prompts = [ids(40, 0)];
        assert_eq!(generate(&engine, &prompts), [None], "{n_succeed}");
        wait_until_no_page_is_held(&engine);
        assert!(generate(&engine, &prompts)[0].is_some(), "{n_succeed}");
    }
}
