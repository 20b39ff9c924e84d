//! Adapters: against other software's logits, in mixed batches to the bit, and bad ones refused completely.

use std::path::Path;

use serde_json::Value;
use tokenmill_backend::{
    Adapter, AdapterError, AdapterWeight, BatchError, Executor, ForwardBatch, RowOutput, StepError,
};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{AdapterReader, LoadError, Model};
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Random, Reference,
    adapter_parity::{adapter_cases, compare_adapter},
    engines,
    generate::{ids, run},
};

use crate::adapter_scene::{add_all, id, options, play, random_adapter, sequences, tiny};

#[test]
fn logits_with_adapters_are_those_of_the_reference() {
    for (row, device) in [
        ("adapters, CPU", engines::CPU),
        ("adapters, naive backend", engines::NAIVE),
    ] {
        let mut comparisons = Comparisons::of(row);
        for (name, base) in [
            ("llama-a", "llama"),
            ("llama-b", "llama"),
            ("qwen3-a", "qwen3"),
            ("qwen3-b", "qwen3"),
        ] {
            let Some(folder) = comparisons.find(&format!("parity2/lora/{name}")) else {
                continue;
            };
            let Some(base) = comparisons.find(&format!("parity/{base}")) else {
                continue;
            };
            let reference = Reference::open(&folder).unwrap();
            for case in adapter_cases(&reference, &folder, &base).unwrap() {
                let comparison = compare_adapter(&reference, &case, &device).unwrap();
                assert!(
                    comparison.failures.is_empty(),
                    "{name} {}: {:?}",
                    case.label,
                    comparison.failures
                );
                comparisons.compared(1);
            }
        }
    }
}

#[test]
fn four_adapters_in_a_batch_of_eight_compute_the_bits_of_each_alone() {
    for ty in [TensorType::F32, TensorType::Q8_0, TensorType::Q4_0] {
        let model = tiny(ty);
        let mut random = Random::new(7);
        let adapters: Vec<Adapter> = ([1, 4, 16, 33].into_iter())
            .map(|rank| random_adapter(&model, rank, &mut random))
            .collect();
        let mut executor = engines::load(&model, engines::cpu(2), &options()).unwrap();
        let n_vocab = executor.limits().n_vocab;
        let mut scene = sequences(n_vocab, &mut random);
        // Without an adapter anywhere, and before any was added.
        let plain: Vec<_> = scene.iter().map(|(tokens, _)| (tokens.clone(), None)).collect();
        let expected_plain = play(&mut executor, &plain);
        add_all(&mut executor, &adapters);
        for n_without in [0, 3] {
            for (_, adapter) in scene.iter_mut().take(n_without) {
                *adapter = None;
            }
            let together = play(&mut executor, &scene);
            for (seq_idx, sequence) in scene.iter().enumerate() {
                let alone = play(&mut executor, std::slice::from_ref(sequence)).remove(0);
                assert!(together[seq_idx] == alone, "{ty}: sequence {seq_idx}");
                let is_plain = together[seq_idx] == expected_plain[seq_idx];
                assert_eq!(is_plain, sequence.1.is_none(), "{ty}: sequence {seq_idx}");
            }
            // The number of threads does not matter either.
            let mut other = engines::load(&model, engines::cpu(1), &options()).unwrap();
            add_all(&mut other, &adapters);
            assert!(play(&mut other, &scene) == together, "{ty}");
        }
        assert!(play(&mut executor, &plain) == expected_plain, "{ty}");
    }
}

#[test]
fn the_products_of_adapters_are_the_formula() {
    let model = tiny(TensorType::F32);
    let mut random = Random::new(3);
    let adapters: Vec<Adapter> = ([2, 5, 8, 40].into_iter())
        .map(|rank| random_adapter(&model, rank, &mut random))
        .collect();
    let mut executor = engines::load(&model, engines::cpu(2), &options()).unwrap();
    let mut naive = engines::load(&model, NaiveBackend::new(), &options()).unwrap();
    let scene = sequences(executor.limits().n_vocab, &mut random);
    add_all(&mut executor, &adapters);
    add_all(&mut naive, &adapters);
    let pairs = play(&mut executor, &scene)
        .concat()
        .into_iter()
        .zip(play(&mut naive, &scene).concat());
    for (found, expected) in pairs {
        // Sums of a few hundred products in another order.
        assert!(
            (found - expected).abs() < 1e-3 * expected.abs().max(1.0),
            "{found} {expected}"
        );
    }
}

#[test]
fn an_adapter_of_its_own_strength_shares_matrices_and_a_removed_one_is_unknown() {
    let model = tiny(TensorType::F32);
    let mut random = Random::new(5);
    let adapter = random_adapter(&model, 4, &mut random);
    let mut doubled = adapter.clone();
    for weight in &mut doubled.weights {
        weight.scale *= 2.0;
    }
    let mut executor = engines::load(&model, engines::cpu(2), &options()).unwrap();
    executor.add_adapter(id(1), &adapter, 1.0).unwrap();
    executor.copy_adapter(id(1), id(2), 2.0).unwrap();
    executor.remove_adapter(id(1));
    executor.add_adapter(id(3), &doubled, 1.0).unwrap();
    let of = |number| vec![(vec![1, 2, 3, 4], Some(id(number)))];
    assert!(play(&mut executor, &of(2)) == play(&mut executor, &of(3)));
    let mut batch = ForwardBatch::default();
    batch.push_sequence(ids(&[1, 2]), 0, &[0]);
    batch.set_adapter(Some(id(1)));
    batch.want_last(RowOutput::Logits);
    let refused = BatchError::UnknownAdapter {
        seq_idx: 0,
        adapter: id(1),
    };
    assert_eq!(
        run(&mut executor, &batch).unwrap_err(),
        StepError::InvalidBatch(refused)
    );
    let gone = executor.copy_adapter(id(1), id(4), 1.0).unwrap_err();
    assert_eq!(gone, AdapterError::NotLoaded { id: id(1) });
}

#[test]
fn a_strength_that_makes_changes_infinite_is_refused() {
    let model = tiny(TensorType::F32);
    let mut adapter = random_adapter(&model, 4, &mut Random::new(5));
    for weight in &mut adapter.weights {
        weight.scale = 1e30;
    }
    let mut executor = engines::load(&model, engines::cpu(2), &options()).unwrap();
    for strength in [1e10, f32::NAN, f32::INFINITY] {
        let refused = executor.add_adapter(id(1), &adapter, strength);
        assert_eq!(refused, Err(AdapterError::Strength), "{strength}");
    }
    executor.add_adapter(id(1), &adapter, 1e-30).unwrap();
    let refused = executor.copy_adapter(id(1), id(2), 1e10);
    assert_eq!(refused, Err(AdapterError::Strength));
}

#[test]
fn an_adapter_that_was_prepared_is_the_same_as_one_that_was_not() {
    let model = tiny(TensorType::F32);
    let adapter = random_adapter(&model, 4, &mut Random::new(6));
    let mut executor = engines::load(&model, engines::cpu(2), &options()).unwrap();
    executor.add_adapter(id(1), &adapter, 1.0).unwrap();
    for weight_idx in 0..adapter.weights.len() {
        executor.prepare_adapter(id(2), &adapter, weight_idx).unwrap();
    }
    executor.add_adapter(id(2), &adapter, 1.0).unwrap();
    let of = |number| vec![(vec![1, 2, 3, 4], Some(id(number)))];
    assert!(play(&mut executor, &of(1)) == play(&mut executor, &of(2)));
}

#[test]
fn adapters_of_other_shapes_or_weights_are_refused_whole() {
    let model = tiny(TensorType::F32);
    let mut random = Random::new(9);
    let good = random_adapter(&model, 2, &mut random);
    let mut executor = engines::load(&model, engines::cpu(1), &options()).unwrap();
    let mut refuse = |change: &dyn Fn(&mut AdapterWeight), part: &str| {
        let mut adapter = good.clone();
        change(adapter.weights.last_mut().unwrap());
        let error = executor
            .add_adapter(id(1), &adapter, 1.0)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    };
    refuse(
        &|weight| weight.tensor = "blk.9.attn_q.weight".to_owned(),
        "`blk.9.attn_q.weight`",
    );
    refuse(
        &|weight| weight.tensor = "token_embd.weight".to_owned(),
        "`token_embd.weight`",
    );
    refuse(
        &|weight| {
            weight.n_out += 1;
            weight.b.bytes.extend([0; 8]);
        },
        "as a matrix of",
    );
    executor.add_adapter(id(1), &good, 1.0).unwrap();
    let mut wrong = good.clone();
    wrong.weights.last_mut().unwrap().tensor = "token_embd.weight".to_owned();
    assert!(executor.add_adapter(id(1), &wrong, 1.0).is_err());
    // The adapter that already has this id stays.
    executor.copy_adapter(id(1), id(2), 0.5).unwrap();
}

#[test]
fn a_file_is_read_where_a_path_names_it_and_a_folder_too() {
    let mut comparisons = Comparisons::of("adapters in both forms");
    for (base, name) in [("qwen3", "qwen3-a"), ("llama", "llama-a")] {
        let folder = comparisons.find(&format!("parity2/lora/{name}"));
        let Some((folder, base)) = folder.zip(comparisons.find(&format!("parity/{base}"))) else {
            continue;
        };
        // On a GGUF base, a folder's rows are put in the order of the file's.
        let reader = Model::open(base.join("model-F32.gguf")).unwrap().adapter_reader();
        let file = reader.read(&folder.join("adapter-F32.gguf")).unwrap();
        assert!(reader.read(&folder).unwrap() == file, "{name}");
        comparisons.compared(1);
        let error = reader
            .read(Path::new("no/such/adapter.gguf"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no/such/adapter.gguf"), "{error}");
    }
}

/// Lists the files of the core adapters, with their readers.
fn core_files(comparisons: &mut Comparisons) -> Option<(AdapterReader, [Vec<u8>; 3])> {
    let folder = comparisons.find("parity2/lora/qwen3-a")?;
    let base = comparisons.find("parity/qwen3")?.join("model-F32.gguf");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let files = [
        "adapter-F32.gguf",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    .map(read);
    Some((Model::open(base).unwrap().adapter_reader(), files))
}

#[test]
fn damaged_adapters_are_errors_of_one_line_or_sound() {
    let mut comparisons = Comparisons::of("damaged adapters");
    let Some((reader, [gguf, config, tensors])) = core_files(&mut comparisons) else {
        return;
    };
    let mut random = Random::new(21);
    let (mut n_refused, mut n_sound) = (0, 0);
    let mut take = |read: Result<Adapter, LoadError>| match read {
        Ok(adapter) => {
            n_sound += 1;
            for weight in &adapter.weights {
                assert!(weight.rank > 0 && weight.scale.is_finite());
                assert_eq!(weight.a.bytes.len() % weight.rank, 0);
                assert_eq!(weight.b.bytes.len() % weight.n_out, 0);
            }
        }
        Err(error) => {
            n_refused += 1;
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    };
    let damage = |bytes: &[u8], n_head: usize, random: &mut Random| {
        let mut bytes = bytes.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len().min(n_head));
            match random.below(4) {
                0 => bytes.truncate(at + 1),
                1 => bytes[at] = bytes[at].wrapping_add(1),
                2 => bytes[at] ^= 1 << random.below(8),
                _ => bytes[at] = random.bits() as u8,
            }
        }
        bytes
    };
    for _ in 0..400 {
        if let Ok(file) = GgufFile::from_bytes(&damage(&gguf, 4096, &mut random)) {
            take(reader.from_gguf(&file));
        }
        take(reader.from_peft(&config, &damage(&tensors, 4096, &mut random)));
        take(reader.from_peft(&damage(&config, 4096, &mut random), &tensors));
    }
    // NaN, which no header shows.
    let mut nan = tensors.clone();
    let end = nan.len();
    nan[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = reader.from_peft(&config, &nan).unwrap_err().to_string();
    assert!(error.contains("not finite"), "{error}");
    assert!(
        n_refused > 300 && n_sound > 50,
        "{n_refused} refused, {n_sound} sound"
    );
    comparisons.compared(1);
}

#[test]
fn an_adapter_of_another_model_is_refused_by_what_differs() {
    let mut comparisons = Comparisons::of("adapters of other models");
    let Some((_, [gguf, config, tensors])) = core_files(&mut comparisons) else {
        return;
    };
    // A llama with other widths.
    let other = tiny(TensorType::F32);
    let reader = other.adapter_reader();
    let error = reader
        .from_gguf(&GgufFile::from_bytes(&gguf).unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("architecture qwen3") && error.contains("llama"),
        "{error}"
    );
    let adapter = reader.from_peft(&config, &tensors);
    let mut executor = engines::load(&other, engines::cpu(1), &options()).unwrap();
    let refused = match &adapter {
        Ok(adapter) => executor.add_adapter(id(1), adapter, 1.0).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(refused.contains("attn_"), "{refused}");
    let config: Value = serde_json::from_slice(&config).unwrap();
    let rank_of = |r: usize| {
        let mut config = config.clone();
        config["r"] = r.into();
        reader
            .from_peft(config.to_string().as_bytes(), &tensors)
            .unwrap_err()
            .to_string()
    };
    assert!(
        rank_of(0).contains("rank 0") && rank_of(5).contains("rank 5"),
        "{}",
        rank_of(5)
    );
    comparisons.compared(1);
}

/// Returns a folder's files of an adapter of rank 1 for one module, all of whose numbers are 1.
fn ones(module: &str, n_out: usize, n_in: usize) -> [Vec<u8>; 2] {
    let name = |matrix| format!("base_model.model.{module}.lora_{matrix}.weight");
    let header = serde_json::json!({
        name("A"): {"dtype": "F32", "shape": [1, n_in], "data_offsets": [0, n_in * 4]},
        name("B"): {"dtype": "F32", "shape": [n_out, 1], "data_offsets": [n_in * 4, (n_in + n_out) * 4]},
    })
    .to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend((0..n_in + n_out).flat_map(|_| 1_f32.to_le_bytes()));
    [br#"{"peft_type":"LORA","r":1,"lora_alpha":1}"#.to_vec(), file]
}

#[test]
fn value_heads_in_another_order_are_refused_and_in_the_same_are_taken() {
    let mut comparisons = Comparisons::of("adapters of delta nets");
    let Some(base) = comparisons.find("parity/qwen3_5") else {
        return;
    };
    for (module, is_refused) in [
        ("model.layers.0.linear_attn.in_proj_qkv", true),
        ("model.layers.0.linear_attn.out_proj", true),
        ("model.layers.0.linear_attn.in_proj_a", true),
        ("model.layers.0.mlp.up_proj", false),
    ] {
        let [config, tensors] = ones(module, 8, 8);
        let read = |path: &str| {
            let reader = Model::open(base.join(path)).unwrap().adapter_reader();
            reader.from_peft(&config, &tensors)
        };
        assert!(read("hf").is_ok(), "{module}");
        match read("model-F32.gguf") {
            Err(error) => assert!(is_refused && error.to_string().contains("differently"), "{error}"),
            Ok(_) => assert!(!is_refused, "{module}"),
        }
        comparisons.compared(1);
    }
}

#[test]
fn factors_of_a_folders_rows_reach_its_adapters() {
    let mut comparisons = Comparisons::of("adapters with factors of rows");
    let Some(base) = comparisons.find("parity/falcon_h1") else {
        return;
    };
    let model = Model::open(base.join("hf")).unwrap();
    let config = std::fs::read(base.join("hf/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let infos = model.weights().infos();
    for (module, tensor, factor) in [
        (
            "mamba.in_proj",
            "ssm_in",
            number(&config["ssm_in_multiplier"]) * number(&config["ssm_multipliers"][0]),
        ),
        ("mamba.out_proj", "ssm_out", number(&config["ssm_out_multiplier"])),
        (
            "feed_forward.gate_proj",
            "ffn_gate",
            number(&config["mlp_multipliers"][0]),
        ),
        (
            "feed_forward.down_proj",
            "ffn_down",
            number(&config["mlp_multipliers"][1]),
        ),
        ("feed_forward.up_proj", "ffn_up", 1.0),
    ] {
        let tensor = format!("blk.0.{tensor}.weight");
        let info = infos.iter().find(|info| info.name == tensor).expect(&tensor);
        let [config, tensors] = ones(&format!("model.layers.0.{module}"), info.dims[1], info.dims[0]);
        let adapter = model.adapter_reader().from_peft(&config, &tensors).unwrap();
        let weight = &adapter.weights[0];
        assert_eq!(weight.tensor, tensor);
        let (first, _) = weight.b.bytes.split_first_chunk().unwrap();
        let found = f32::from_le_bytes(*first);
        assert!(
            (found - factor).abs() <= 1e-6 * factor.abs(),
            "{module}: {found}, expected {factor}"
        );
        comparisons.compared(1);
    }
}

#[test]
fn two_modules_of_one_weight_are_refused() {
    let model = tiny(TensorType::F32);
    let good = random_adapter(&model, 2, &mut Random::new(9));
    let twice = Adapter {
        weights: vec![good.weights[0].clone(), good.weights[0].clone()],
    };
    let mut executor = engines::load(&model, engines::cpu(1), &options()).unwrap();
    let error = executor.add_adapter(id(1), &twice, 1.0).unwrap_err();
    assert!(matches!(error, AdapterError::Twice { .. }), "{error}");

    let tensor = |name: String| {
        [
            (format!("{name}.lora_A.weight"), [1, 8]),
            (format!("{name}.lora_B.weight"), [8, 1]),
        ]
    };
    let module = "model.layers.0.self_attn.q_proj";
    for other in [module.to_owned(), format!("base_model.model.{}", &module[6..])] {
        let names = [tensor(format!("base_model.model.{module}")), tensor(other)];
        let mut header = serde_json::Map::new();
        for (i, (name, shape)) in names.into_iter().flatten().enumerate() {
            let range = [i * 32, (i + 1) * 32];
            header.insert(
                name,
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": range}),
            );
        }
        let header = Value::from(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + 4 * 32, 0);
        let error = (model.adapter_reader())
            .from_peft(br#"{"peft_type":"LORA","r":1,"lora_alpha":1}"#, &file)
            .unwrap_err()
            .to_string();
        assert!(error.contains("two"), "{error}");
    }
}
