//! Networks that several ranks compute together, each its part of every layer: they give the results of one device, and no rank waits for one that
//! failed.

mod nccl;

use std::time::Duration;

use tokenmill_backend::{
    Collective, Executor, ExecutorLimits, ForwardBatch, HostGroup, KvType, PageCopy, PageGroup, SampledToken,
    StepError, StepOutput, StepTrace, Ticket, TokenSource,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{
    Descriptor, FfnDescriptor, GateUpOrder, HeadPart, LoadError, ModelOptions, OutputGate, OutputHead,
    Presence, QkNorm, Rank, Shard,
};
use tokenmill_placed::{GroupExecutor, GroupRank};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};
use tokenmill_testkit::{
    MEMORY_KINDS, NaiveBackend, TinyModel, VARIANTS,
    engines::{self, Loadable},
    generate::{all_logits, greedy},
    tiny_experts, tiny_llama,
};

const TOKENS: [u32; 21] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6];

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(64),
        max_batch_tokens: 64,
        max_batch_seqs: 4,
        max_logit_rows: 64,
        n_pages: Some(16),
        n_host_pages: 4,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

/// Returns a group of ranks, each on a backend that is made with its end of the group.
fn group<B: Loadable>(
    model: &TinyModel,
    n_ranks: usize,
    mut backend: impl FnMut(usize, Box<dyn Collective>) -> B,
) -> Result<GroupExecutor, LoadError> {
    let group = HostGroup::new(n_ranks);
    let ranks = (0..n_ranks)
        .map(|idx| {
            let shard = Shard::new(&model.descriptor, model, Rank { idx, n_ranks })?;
            let backend = backend(idx, Box::new(group.rank(idx)));
            Ok(GroupRank {
                executor: engines::build(shard.descriptor(), &shard, backend, &options())?,
                place: format!("GPU {idx}"),
            })
        })
        .collect::<Result<_, LoadError>>()?;
    Ok(GroupExecutor::start(ranks, group).expect("threads"))
}

/// Returns a group of simulated GPUs, with the tests' ends of them.
fn on_gpus(model: &TinyModel, n_ranks: usize) -> (GroupExecutor, Vec<Simulator>) {
    let simulators: Vec<_> = (0..n_ranks)
        .map(|_| Simulator::new(&SimOptions::default()))
        .collect();
    let executor = group(model, n_ranks, |idx, collective| {
        let backend = engines::gpu_of(&simulators[idx]);
        backend.with_collective(collective)
    });
    (executor.expect("the network can be divided"), simulators)
}

fn on_one_gpu(model: &TinyModel) -> impl Executor + use<> {
    engines::tiny(model, engines::gpu(), &options())
}

#[track_caller]
fn assert_close(case: &str, expected: &[f32], found: &[f32], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{case}");
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        let difference = (expected - found).abs();
        assert!(
            difference <= tolerance * largest,
            "{case}, {index}: {found} instead of {expected}"
        );
    }
}

/// Llama, Qwen3 and Qwen3 with experts, with heads and widths that eight ranks divide.
fn networks() -> [(&'static str, Descriptor); 3] {
    let widened = |mut descriptor: Descriptor| {
        for layer in &mut descriptor.layers {
            let attention = layer.attention_mut();
            (attention.n_heads, attention.n_kv_heads) = (8, 2);
            match &mut layer.ffn {
                FfnDescriptor::Dense(dense) => dense.n_ff = 288,
                FfnDescriptor::Moe(moe) => moe.n_ff = 256,
                _ => {}
            }
        }
        descriptor
    };
    let normed = |mut descriptor: Descriptor| {
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
        }
        descriptor
    };
    [
        ("llama", widened(tiny_llama())),
        ("qwen3", normed(widened(tiny_llama()))),
        ("qwen3moe", normed(widened(tiny_experts()))),
    ]
}

#[test]
fn groups_of_gpus_continue_as_one_does() {
    for (name, descriptor) in networks() {
        // Two ranks also with quantized weights, of which each has whole blocks.
        for (ty, sizes) in [(TensorType::F16, &[2, 4, 8][..]), (TensorType::Q8_0, &[2])] {
            let model = TinyModel::random(descriptor.clone(), ty, 21);
            let mut alone = on_one_gpu(&model);
            let expected = (
                all_logits(&mut alone, &TOKENS).unwrap(),
                greedy(&mut alone, &TOKENS[..5], 8).unwrap(),
            );
            for &n_ranks in sizes {
                let (mut ranks, _simulators) = on_gpus(&model, n_ranks);
                let case = format!("{name} in {ty} on {n_ranks}");
                let logits = all_logits(&mut ranks, &TOKENS).unwrap();
                // Sums of fewer terms each, in another order; some quantized activations then round to an adjacent value.
                let tolerance = if ty == TensorType::F16 { 2e-4 } else { 3e-2 };
                assert_close(&case, &expected.0, &logits, tolerance);
                assert_eq!(greedy(&mut ranks, &TOKENS[..5], 8).unwrap(), expected.1, "{case}");
            }
        }
    }
}

#[test]
fn memory_for_sums_is_made_at_load() {
    let (_, descriptor) = networks()[0].clone();
    let model = TinyModel::random(descriptor, TensorType::F32, 21);
    let (mut ranks, simulators) = on_gpus(&model, 2);
    let pinned = || simulators.iter().map(Simulator::pinned_bytes).collect::<Vec<_>>();
    let at_load = pinned();
    let n_embd = model.descriptor.n_embd;
    let for_sums = 4 * options().max_batch_tokens * n_embd;
    assert!(at_load.iter().all(|&n_bytes| n_bytes >= for_sums), "{at_load:?}");
    all_logits(&mut ranks, &TOKENS).unwrap();
    assert_eq!(pinned(), at_load);
}

/// Every feature of a network is computed by ranks as by one device, or refused by name.
#[test]
fn variants_are_divided_or_refused() {
    let mut refused: Vec<&str> = Vec::new();
    let mut variants: Vec<(&str, Descriptor)> = (VARIANTS.iter().chain(MEMORY_KINDS))
        .map(|(name, change)| {
            let mut descriptor = tiny_llama();
            change(&mut descriptor);
            (*name, descriptor)
        })
        .collect();
    let mut gated = tiny_llama();
    gated.layers[0].attention_mut().output_gate = Some(OutputGate::InQuery);
    variants.push(("a gate among the queries", gated));
    variants.push(("experts", tiny_experts()));
    variants.extend(tokenmill_testkit::EXPERT_VARIANTS.iter().map(|(name, change)| {
        let mut descriptor = tiny_experts();
        change(&mut descriptor);
        (*name, descriptor)
    }));
    let mut n_divided = 0;
    for (name, descriptor) in variants {
        let model = TinyModel::random(descriptor, TensorType::F32, 5);
        let mut ranks = match group(&model, 2, |_, collective| NaiveBackend::of_group(collective)) {
            Ok(ranks) => ranks,
            Err(LoadError::UnsupportedFeature { feature, .. }) => {
                assert!(
                    feature.ends_with("divided among several devices,"),
                    "{name}: {feature}"
                );
                refused.push(name);
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let mut alone = engines::tiny(&model, NaiveBackend::new(), &options());
        let expected = all_logits(&mut alone, &TOKENS).unwrap();
        assert_close(name, &expected, &all_logits(&mut ranks, &TOKENS).unwrap(), 1e-4);
        n_divided += 1;
    }
    // Each entry added here is a network that cannot be divided.
    let mut expected = [
        "norm of q and k rows",
        "latent rows",
        "latent rows next to a window",
        "states of a delta net, and attention",
        "states of Mamba 2, and attention with a window",
        "states of Mamba, and attention",
        "states of a short convolution, attention, and attention with a window",
        "attention and a state in one layer",
        "states alone",
        "scores that fall with the distance",
        "experts next to a dense network",
        "norm of q and k heads with weights for each",
        "layer norm of q and k heads with weights for each",
        "experts with narrower rows of their own",
        "experts with rows of their own next to a shared network",
    ];
    refused.sort_unstable();
    expected.sort_unstable();
    assert_eq!(refused, expected);
    assert!(n_divided > 50, "{n_divided}");
}

/// The rows of several heads in one tensor, and gate and up in one.
#[test]
fn joined_tensors_are_divided_part_by_part() {
    for order in [GateUpOrder::GateFirst, GateUpOrder::UpFirst] {
        let mut descriptor = tiny_llama();
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Required;
            layer.dense_mut().joined = order;
        }
        let mut model = TinyModel::random(descriptor, TensorType::F32, 5);
        let mut alone = engines::tiny(&model, NaiveBackend::new(), &options());
        let expected = all_logits(&mut alone, &TOKENS).unwrap();
        for layer_idx in 0..2 {
            let name = |part: &str| format!("blk.{layer_idx}.{part}");
            for end in ["weight", "bias"] {
                let parts = ["attn_q", "attn_k", "attn_v"].map(|part| name(&format!("{part}.{end}")));
                model.join(
                    &parts.each_ref().map(String::as_str),
                    &name(&format!("attn_qkv.{end}")),
                );
            }
            let mut parts = [name("ffn_gate.weight"), name("ffn_up.weight")];
            if order == GateUpOrder::UpFirst {
                parts.reverse();
            }
            model.join(&parts.each_ref().map(String::as_str), &name("ffn_up.weight"));
        }
        for n_ranks in [2, 4] {
            let mut ranks = group(&model, n_ranks, |_, collective| {
                NaiveBackend::of_group(collective)
            })
            .unwrap();
            let found = all_logits(&mut ranks, &TOKENS).unwrap();
            assert_close(&format!("{order:?} on {n_ranks}"), &expected, &found, 1e-4);
        }
    }
}

#[test]
fn what_ranks_do_not_divide_is_refused_with_what_would_do() {
    let model = TinyModel::random(tiny_llama(), TensorType::Q8_0, 5);
    let refusal = |n_ranks| {
        let shard = Shard::new(&model.descriptor, &model, Rank { idx: 0, n_ranks });
        shard.err().expect("a refusal").to_string()
    };
    assert_eq!(
        refusal(3),
        "4 heads and 2 KV heads of layer 0 cannot be divided among 3 devices, only among 1, 2 or 4"
    );
    // Each of four ranks has a head of 16 columns.
    assert_eq!(
        refusal(4),
        "a rank's 16 columns of tensor `blk.0.attn_output.weight` are not whole blocks of Q8_0, which have 32 each"
    );
}

#[test]
fn the_ranks_parts_are_smaller_than_the_whole() {
    let (_, descriptor) = networks().into_iter().next().unwrap();
    let model = TinyModel::random(descriptor, TensorType::F16, 5);
    let plan = |n_ranks| {
        let shard = Shard::new(&model.descriptor, &model, Rank { idx: 0, n_ranks }).unwrap();
        shard.plan(&NaiveBackend::new(), &options()).unwrap()
    };
    let (whole, half) = (plan(1), plan(2));
    assert_eq!(2 * half.kv_bytes, whole.kv_bytes);
    // Embedding and head are on both.
    assert!(
        half.weights_bytes < whole.weights_bytes * 2 / 3,
        "{half:?} of {whole:?}"
    );
}

fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

fn tokens(engine: &Engine, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let outputs = engine.batch_generate(prompts, &params(6)).unwrap();
    outputs.into_iter().map(|output| output.unwrap().tokens).collect()
}

#[test]
fn an_engine_over_a_group_batches_caches_and_moves_pages() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    let alone = Engine::start(on_one_gpu(&model), EngineConfig::default());
    let (ranks, _simulators) = on_gpus(&model, 2);
    let engine = Engine::start(ranks, EngineConfig::default());
    let prompts: Vec<Vec<u32>> = (0..4u32)
        .map(|own| (0..18).chain((0..own).map(|idx| (idx * 11 + own) % 96)).collect())
        .collect();
    for round in 0..2 {
        assert_eq!(
            tokens(&engine, &prompts),
            tokens(&alone, &prompts),
            "round {round}"
        );
    }
    let output = engine.generate(&prompts[1], &params(2)).unwrap();
    assert!(output.usage.cached_tokens > 0);
}

#[test]
fn a_step_that_fails_on_one_rank_fails_on_all_and_the_next_one_works() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    for fault in [
        Fault::Launch { after: 9 },
        Fault::Launch { after: 0 },
        Fault::Download { after: 3 },
    ] {
        let (mut ranks, simulators) = on_gpus(&model, 2);
        let expected = greedy(&mut ranks, &[1, 2, 3], 4).unwrap();
        for (rank, simulator) in simulators.iter().enumerate() {
            simulator.inject(fault);
            let error = greedy(&mut ranks, &[1, 2, 3], 4).unwrap_err().to_string();
            assert!(
                error.contains(&format!("GPU {rank}, rank {rank} of 2: ")),
                "{fault:?} on {rank}: {error}"
            );
            assert_eq!(
                greedy(&mut ranks, &[1, 2, 3], 4).unwrap(),
                expected,
                "{fault:?} on {rank}"
            );
        }
    }
}

#[test]
fn a_lost_rank_ends_the_step_and_every_later_one() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    for after in [0, 7, 40] {
        let (ranks, simulators) = on_gpus(&model, 2);
        simulators[1].inject(Fault::Lose { after });
        let engine = Engine::start(ranks, EngineConfig::default());
        for _ in 0..2 {
            let error = engine.generate(&[1, 2, 3], &params(8)).unwrap_err().to_string();
            assert!(error.contains("lost"), "{after}: {error}");
        }
    }
    let (mut ranks, simulators) = on_gpus(&model, 2);
    simulators[1].inject(Fault::Lose { after: 7 });
    for _ in 0..2 {
        let mut batch = ForwardBatch::default();
        batch.push_sequence([1, 2].map(TokenSource::Id), 0, &[0]);
        let error = ranks.submit(&batch).unwrap_err();
        let StepError::DeviceLost { reason, .. } = &error else {
            panic!("{error}");
        };
        assert!(reason.starts_with("GPU 1, rank 1 of 2: "), "{reason}");
    }
}

/// A call in which a [`Scripted`] rank fails or hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Submit,
    Wait,
    CopyPages,
    Trace,
    /// The end of the executor.
    Close,
}

/// A rank that computes nothing and never meets other ranks.
struct Scripted {
    limits: ExecutorLimits,
    fails_in: Option<Call>,
    /// The call in which it hangs, like a driver.
    hangs_in: Option<Call>,
    /// The token that it samples.
    token: u32,
    n_submitted: u64,
}

impl Scripted {
    fn new(limits: ExecutorLimits) -> Self {
        Self {
            limits,
            fails_in: None,
            hangs_in: None,
            token: 7,
            n_submitted: 0,
        }
    }

    fn enter(&self, call: Call) -> Result<(), StepError> {
        while self.hangs_in == Some(call) {
            std::thread::park();
        }
        if self.fails_in == Some(call) {
            return Err(StepError::Device {
                operation: "a test",
                reason: "out of memory".to_owned(),
            });
        }
        Ok(())
    }
}

impl Executor for Scripted {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn submit(&mut self, _: &ForwardBatch) -> Result<Ticket, StepError> {
        self.enter(Call::Submit)?;
        self.n_submitted += 1;
        Ok(Ticket(self.n_submitted - 1))
    }

    fn wait(&mut self, _: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        self.enter(Call::Wait)?;
        output.clear();
        let (id, logprob) = (self.token, None);
        output.sampled.push(Some(Ok(SampledToken { id, logprob })));
        Ok(())
    }

    fn copy_pages(&mut self, _: PageGroup, _: &[PageCopy]) -> Result<(), StepError> {
        self.enter(Call::CopyPages)
    }

    fn trace(&self) -> Option<StepTrace> {
        let _ = self.enter(Call::Trace);
        None
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.enter(Call::Close);
    }
}

/// Makes two ranks that compute nothing and applies `change` to them.
fn scripted(change: impl Fn(&mut [Scripted; 2])) -> GroupExecutor {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 11);
    let executor = engines::tiny(&model, NaiveBackend::new(), &options());
    let limits = executor.limits().clone();
    let mut ranks = [(); 2].map(|()| Scripted::new(limits.clone()));
    change(&mut ranks);
    let ranks = ranks.map(|executor| GroupRank {
        executor: Box::new(executor),
        place: String::new(),
    });
    let group = HostGroup::with_patience(2, Duration::from_millis(150));
    GroupExecutor::start(ranks.into(), group).expect("threads")
}

/// Runs a step, copies of pages and a trace; returns the first error.
fn all_calls(ranks: &mut GroupExecutor) -> Result<(), StepError> {
    let mut batch = ForwardBatch::default();
    batch.push_sequence([TokenSource::Id(1)], 0, &[0]);
    let ticket = ranks.submit(&batch)?;
    ranks.wait(ticket, &mut StepOutput::default())?;
    ranks.copy_pages(PageGroup::default(), &[])?;
    ranks.trace();
    Ok(())
}

/// Holds for each call in which a rank hangs, and whether or not another failed before.
#[test]
fn a_rank_that_hangs_in_any_call_is_given_up() {
    let calls = [Call::Submit, Call::Wait, Call::CopyPages, Call::Trace];
    for hangs_in in calls {
        // If rank 0 fails in submitting, rank 1 hangs in the same call, or in work that it must drop.
        for fails_in in [None, Some(Call::Submit), Some(hangs_in)] {
            if fails_in == Some(Call::Submit) && !matches!(hangs_in, Call::Submit | Call::Wait) {
                continue;
            }
            // A trace is that of rank 0, and cannot fail.
            let hanging = usize::from(hangs_in != Call::Trace);
            let mut ranks = scripted(|ranks| {
                ranks[1 - hanging].fails_in = fails_in;
                ranks[hanging].hangs_in = Some(hangs_in);
            });
            let case = format!("{hangs_in:?} after {fails_in:?}");
            if hangs_in == Call::Trace {
                all_calls(&mut ranks).unwrap();
            }
            let expected = format!("rank {hanging} of 2: it did not answer");
            for _ in 0..2 {
                let error = all_calls(&mut ranks).unwrap_err();
                assert!(matches!(error, StepError::DeviceLost { .. }), "{case}: {error}");
                assert!(error.to_string().contains(&expected), "{case}: {error}");
            }
            assert!(ranks.trace().is_none(), "{case}");
        }
    }
    // The test ends when the group ends.
    drop(scripted(|ranks| ranks[1].hangs_in = Some(Call::Close)));
}

#[test]
fn ranks_that_sampled_different_tokens_are_not_asked_again() {
    let mut ranks = scripted(|ranks| ranks[1].token = 8);
    let mut batch = ForwardBatch::default();
    batch.push_sequence([TokenSource::Id(1)], 0, &[0]);
    let [first, second] = [(); 2].map(|()| ranks.submit(&batch).unwrap());
    let mut output = StepOutput::default();
    // The second step was already running, and computes from two tokens.
    let errors = [
        ranks.wait(first, &mut output).unwrap_err(),
        ranks.wait(second, &mut output).unwrap_err(),
        ranks.copy_pages(PageGroup::default(), &[]).unwrap_err(),
        ranks.submit(&batch).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StepError::DeviceLost { .. }), "{error}");
        let error = error.to_string();
        assert!(
            error.contains("rank 1 of the group sampled other tokens than rank 0"),
            "{error}"
        );
    }
    assert!(output.sampled.is_empty());
}

#[test]
fn a_rank_that_others_wait_for_in_vain_is_given_up() {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 11);
    let group = HostGroup::with_patience(2, Duration::from_millis(150));
    let shard = Shard::new(&model.descriptor, &model, Rank { idx: 0, n_ranks: 2 }).unwrap();
    let backend = NaiveBackend::of_group(Box::new(group.rank(0)));
    let executor = engines::build(shard.descriptor(), &shard, backend, &options()).unwrap();
    let mut hanging = Scripted::new(executor.limits().clone());
    hanging.hangs_in = Some(Call::Submit);
    let place = String::new;
    let ranks: [Box<dyn Executor + Send>; 2] = [executor, Box::new(hanging)];
    let ranks = ranks.map(|executor| GroupRank {
        executor,
        place: place(),
    });
    let mut ranks = GroupExecutor::start(ranks.into(), group).unwrap();
    for _ in 0..2 {
        let error = all_logits(&mut ranks, &[1, 2]).unwrap_err().to_string();
        assert!(error.contains("rank 1 of 2: it did not answer"), "{error}");
    }
}
