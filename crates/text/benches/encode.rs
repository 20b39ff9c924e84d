//! Encoding speed per vocabulary, compared with Hugging Face's `tokenizers` on the same text in the same run.
//!
//! Needs `TOKENMILL_TEST_DATA`; measures nothing without it.

use std::{fs, hint::black_box, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Map, Value, json};
use tokenmill_gguf::GgufFile;
use tokenmill_testkit::test_data;
use tokenmill_text::{EncodeOptions, Tokenizer};

const TEXT_BYTES: usize = 1 << 20;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the reference for a byte-level vocabulary that exists only as GGUF.
fn reference_of_gguf(file: &GgufFile, pattern: &str, normalizer: &Value) -> tokenizers::Tokenizer {
    let tokens = file.metadata().string_array("tokenizer.ggml.tokens").unwrap();
    let merges = file.metadata().string_array("tokenizer.ggml.merges").unwrap();
    let vocab: Map<String, Value> = (0..)
        .zip(tokens.iter())
        .map(|(id, text)| (text.to_owned(), json!(id as u32)))
        .collect();
    let merges: Vec<&str> = merges.iter().collect();
    let file = json!({
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pattern == LLAMA3},
    });
    serde_json::from_value(file).unwrap()
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    text: &str,
    ours: &Tokenizer,
    reference: Option<&tokenizers::Tokenizer>,
) {
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    if let Some(reference) = reference {
        let expected = reference.encode_fast(text, false).unwrap();
        assert!(
            ours.encode(text, options) == expected.get_ids(),
            "{name}: ids differ"
        );
    }
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("tokenmill", |b| b.iter(|| ours.encode(black_box(text), options)));
    if let Some(reference) = reference {
        group.bench_function("tokenizers", |b| {
            b.iter(|| reference.encode_fast(black_box(text), false).unwrap());
        });
    }
    group.finish();
}

fn encode(criterion: &mut Criterion) {
    let Some(data) = test_data("encode") else {
        return;
    };
    let english = fs::read_to_string(data.join("text/heldout.txt")).unwrap();
    let mixed = fs::read_to_string(data.join("vocab/expected-llamacpp/mixed.txt")).unwrap();
    // Without special tokens our reader treats this as text, but the reference's model knows it.
    let mixed = mixed.replace("</s>", "");
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        text.push_str(&english);
        text.push_str(&mixed);
    }
    while text.len() > TEXT_BYTES {
        text.pop();
    }
    for name in [
        "bert-bge",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "phi-3",
        "qwen2",
        "starcoder",
    ] {
        let file = GgufFile::open(data.join(format!("vocab/ggml-vocab-{name}.gguf"))).unwrap();
        let ours = Tokenizer::from_gguf(file.metadata()).unwrap();
        let reference = match name {
            "llama-bpe" => Some(reference_of_gguf(&file, LLAMA3, &Value::Null)),
            "qwen2" => Some(reference_of_gguf(&file, QWEN2, &json!({"type": "NFC"}))),
            _ => None,
        };
        measure(
            criterion,
            &format!("gguf {name}"),
            &text,
            &ours,
            reference.as_ref(),
        );
        criterion.bench_function(&format!("gguf {name}/load"), |b| {
            b.iter(|| Tokenizer::from_gguf(file.metadata()).unwrap());
        });
    }
    for name in [
        "bert-base-uncased",
        "falcon",
        "phi-2",
        "phi-3-mini",
        "roberta-base",
        "t5-small",
    ] {
        let path = data.join(format!("tokenizers/{name}/tokenizer.json"));
        let ours = Tokenizer::from_tokenizer_json(&fs::read(&path).unwrap()).unwrap();
        let mut reference = tokenizers::Tokenizer::from_file(&path).unwrap();
        reference.set_encode_special_tokens(true);
        measure(criterion, &format!("json {name}"), &text, &ours, Some(&reference));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = encode
}
criterion_main!(benches);
