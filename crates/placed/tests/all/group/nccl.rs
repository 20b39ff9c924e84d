//! Groups whose GPUs sum through NCCL: the same tests, on a simulated NCCL.

use tokenmill_cuda_exec::{CudaBackend, Device, NcclRank};

use super::*;

/// Returns a group of simulated GPUs that are joined by NCCL, with the tests' ends of them.
fn joined(model: &TinyModel, n_ranks: usize) -> (GroupExecutor, Vec<Simulator>) {
    let simulators: Vec<_> = (0..n_ranks)
        .map(|_| Simulator::new(&SimOptions::default()))
        .collect();
    let devices: Vec<Device> = simulators.iter().map(Simulator::device).collect();
    let group = HostGroup::new(n_ranks);
    let joined = NcclRank::join(&Simulator::nccl(), &devices, &group).expect("simulated GPUs join");
    let ranks = (devices.into_iter().zip(joined).enumerate())
        .map(|(idx, (device, joined))| {
            let shard = Shard::new(&model.descriptor, model, Rank { idx, n_ranks })
                .and_then(Shard::with_divided_head)
                .expect("it can be divided");
            let backend = CudaBackend::new(device).expect("the simulator loads the kernels");
            let backend = backend.with_nccl(joined);
            let executor =
                engines::build(shard.descriptor(), &shard, backend, &options()).expect("a tiny model loads");
            GroupRank {
                executor,
                place: format!("GPU {idx}"),
            }
        })
        .collect();
    (GroupExecutor::start(ranks, group).expect("threads"), simulators)
}

#[test]
fn gpus_joined_by_nccl_continue_as_one_does_with_captured_steps() {
    for (name, descriptor) in networks() {
        let model = TinyModel::random(descriptor, TensorType::F16, 21);
        let mut alone = on_one_gpu(&model);
        let expected = (
            all_logits(&mut alone, &TOKENS).unwrap(),
            greedy(&mut alone, &TOKENS[..5], 8).unwrap(),
        );
        for n_ranks in [2, 4, 8] {
            let (mut ranks, simulators) = joined(&model, n_ranks);
            let case = format!("{name} on {n_ranks}");
            let logits = all_logits(&mut ranks, &TOKENS).unwrap();
            // Sums of fewer terms each, in another order.
            assert_close(&case, &expected.0, &logits, 2e-4);
            let n_sums = simulators[0].n_sums();
            assert_eq!(
                n_sums,
                2 * model.descriptor.layers.len() as u64,
                "{case}: two a layer"
            );
            assert_eq!(greedy(&mut ranks, &TOKENS[..5], 8).unwrap(), expected.1, "{case}");
            for simulator in &simulators {
                let (n_captured, n_replayed) = simulator.graph_counts();
                assert!(
                    n_captured > 0 && n_replayed > n_captured,
                    "{case}: {n_captured}, {n_replayed}"
                );
                assert_eq!(simulator.n_sums(), simulators[0].n_sums(), "{case}");
            }
        }
    }
}

/// 97 tokens, which no number of ranks divides; every rank scales and caps all of them.
#[test]
fn joined_gpus_divide_the_head_and_have_the_logits_of_all_tokens() {
    let mut descriptor = tiny_llama();
    descriptor.n_vocab = 97;
    (descriptor.logit_scale, descriptor.logit_softcap) = (0.5, Some(30.0));
    let model = TinyModel::random(descriptor, TensorType::F16, 23);
    let shards: Vec<_> = (0..2)
        .map(|idx| Shard::new(&model.descriptor, &model, Rank { idx, n_ranks: 2 }).unwrap())
        .map(|shard| shard.with_divided_head().unwrap())
        .collect();
    for shard in &shards {
        let part = HeadPart {
            n_each: 49,
            n_ranks: 2,
        };
        assert_eq!(shard.descriptor().head, OutputHead::Part(part));
    }
    let (mut ranks, _simulators) = joined(&model, 2);
    let expected = all_logits(&mut on_one_gpu(&model), &TOKENS).unwrap();
    let logits = all_logits(&mut ranks, &TOKENS).unwrap();
    assert_close("97 tokens", &expected, &logits, 2e-4);
}

#[test]
fn a_head_stays_whole_where_it_is_the_embedding() {
    for (head, n_ranks, is_divided) in [
        (OutputHead::Own, 8, true),
        (OutputHead::Own, 1, false),
        (OutputHead::Tied, 2, false),
        // The model itself has none.
        (OutputHead::OwnIfPresent, 2, false),
        (OutputHead::None, 2, false),
    ] {
        let (_, mut descriptor) = networks().into_iter().next().expect("llama");
        descriptor.head = head;
        let model = TinyModel::random(descriptor, TensorType::F16, 3);
        let shard = Shard::new(&model.descriptor, &model, Rank { idx: 0, n_ranks })
            .and_then(Shard::with_divided_head)
            .unwrap();
        let found = matches!(shard.descriptor().head, OutputHead::Part(_));
        assert_eq!(found, is_divided, "{head:?} among {n_ranks}");
    }
}

/// A group that sums in the host's memory cannot gather the parts of a head, and returns an error.
#[test]
fn a_divided_head_is_refused_where_the_host_adds_up() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    let group = HostGroup::new(2);
    let ranks = (0..2)
        .map(|idx| {
            let backend = engines::gpu();
            let backend = backend.with_collective(Box::new(group.rank(idx)));
            let shard = Shard::new(&model.descriptor, &model, Rank { idx, n_ranks: 2 })
                .and_then(Shard::with_divided_head)
                .unwrap();
            GroupRank {
                executor: engines::build(shard.descriptor(), &shard, backend, &options()).unwrap(),
                place: format!("GPU {idx}"),
            }
        })
        .collect();
    let mut ranks = GroupExecutor::start(ranks, group).expect("threads");
    let error = all_logits(&mut ranks, &TOKENS).unwrap_err().to_string();
    assert!(error.contains("an output head that is divided"), "{error}");
}

#[test]
fn nccl_needs_no_memory_of_the_host_for_sums() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    let (_by_host, of_host) = on_gpus(&model, 2);
    let (_by_nccl, of_nccl) = joined(&model, 2);
    let for_sums = 4 * options().max_batch_tokens * model.descriptor.n_embd;
    assert_eq!(of_nccl[0].pinned_bytes() + for_sums, of_host[0].pinned_bytes());
}

#[test]
fn an_engine_over_joined_gpus_batches_and_moves_pages() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    let alone = Engine::start(on_one_gpu(&model), EngineConfig::default());
    let (ranks, _simulators) = joined(&model, 2);
    let engine = Engine::start(ranks, EngineConfig::default());
    let prompts: Vec<Vec<u32>> = (0..4u32)
        .map(|own| (0..18).chain((0..own).map(|idx| (idx * 11 + own) % 96)).collect())
        .collect();
    for round in 0..2 {
        let expected = tokens(&alone, &prompts);
        assert_eq!(tokens(&engine, &prompts), expected, "round {round}");
    }
}

#[test]
fn a_lost_rank_releases_those_that_wait_for_it_on_the_device() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    for after in [0, 7, 40, 100] {
        let (mut ranks, simulators) = joined(&model, 2);
        simulators[1].inject(Fault::Lose { after });
        for _ in 0..2 {
            let error = greedy(&mut ranks, &[1, 2, 3], 8).unwrap_err().to_string();
            assert!(error.contains("GPU 1, rank 1 of 2: "), "{after}: {error}");
            assert!(error.contains("lost"), "{after}: {error}");
        }
    }
}

#[test]
fn a_rank_whose_launch_fails_is_named_and_ends_the_group() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    for after in [0, 9] {
        let (mut ranks, simulators) = joined(&model, 2);
        let expected = greedy(&mut ranks, &[1, 2, 3], 4).unwrap();
        assert_eq!(greedy(&mut ranks, &[1, 2, 3], 4).unwrap(), expected);
        simulators[1].inject(Fault::Launch { after });
        let error = greedy(&mut ranks, &[1, 2, 3], 4).unwrap_err().to_string();
        assert!(error.contains("GPU 1, rank 1 of 2: "), "{after}: {error}");
        // The other rank waited on its device for a sum that never came: its communicator is gone.
        let error = greedy(&mut ranks, &[1, 2, 3], 4).unwrap_err().to_string();
        assert!(
            error.contains("the communicator was aborted: rank 1 of the group failed"),
            "{error}"
        );
        assert!(
            error.contains("lost") && error.contains("once the program is started again"),
            "{error}"
        );
    }
}

#[test]
fn a_step_that_cannot_be_captured_on_one_rank_is_computed_on_all() {
    let model = TinyModel::random(tiny_llama(), TensorType::F16, 11);
    for fault in [Fault::BeginCapture, Fault::EndCapture] {
        let (mut ranks, simulators) = joined(&model, 2);
        simulators[1].inject(fault);
        let expected = greedy(&mut on_one_gpu(&model), &[1, 2, 3], 6).unwrap();
        assert_eq!(greedy(&mut ranks, &[1, 2, 3], 6).unwrap(), expected, "{fault:?}");
        // One replays the steps that the other launches.
        assert!(
            simulators[0].graph_counts().1 > simulators[1].graph_counts().1,
            "{fault:?}"
        );
        assert_eq!(simulators[0].n_sums(), simulators[1].n_sums());
    }
}
