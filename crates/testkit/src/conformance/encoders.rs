//! The conformance suite's part for encoders: attention in both directions, pooling and the head.
//!
//! A sequence of an encoder is one step and gives one row. Each function is one claim and panics if it does not
//! hold.

use tokenmill_backend::{Activation, Executor, ForwardBatch, KvType, NormKind, PAGE_TOKENS, Pooling};
use tokenmill_gguf::TensorType;
use tokenmill_model::{
    Descriptor, EmbeddingNorm, HeadLayer, ModelOptions, NormPlacement, OutputHead, PooledOutput,
    PoolingDescriptor, Presence, QkNorm,
};

use super::{
    compare::{assert_close, assert_same_bits},
    subject::{Company, Subject},
};
use crate::{
    NaiveBackend,
    generate::{ids, run},
    random::Random,
    tiny_model::{TinyModel, tiny_llama},
    variants::Variant,
};

/// Sums of some tens of products of numbers of size 1, in another order.
const F32_TOLERANCE: f32 = 2e-4;

/// Changes of a network with attention in both directions and mean pooling.
const ENCODERS: &[Variant] = &[
    ("mean", |_| {}),
    ("first", |d| pool(d, Pooling::First)),
    ("last", |d| pool(d, Pooling::Last)),
    ("windows", |d| {
        d.layers[0].attention_mut().window = Some(5);
        d.layers[1].attention_mut().window = Some(1);
    }),
    ("BERT", bert),
    ("BERT that ranks", |d| {
        bert(d);
        d.pooling = Some(PoolingDescriptor {
            kind: Pooling::First,
            head: vec![
                HeadLayer::Linear {
                    name: "cls",
                    n_out: 32,
                    bias: Presence::Required,
                },
                HeadLayer::Tanh,
                HeadLayer::Linear {
                    name: "cls.output",
                    n_out: 1,
                    bias: Presence::Required,
                },
            ],
            output: PooledOutput::Rank,
        });
    }),
    ("no norm before the first mixer, a norm in the head", |d| {
        d.embedding_norm = Some(EmbeddingNorm::Weighted);
        d.layers[0].norms = NormPlacement::PreFfn;
        let head = &mut d.pooling.as_mut().expect("an encoder pools").head;
        head.push(HeadLayer::Linear {
            name: "dense_2",
            n_out: 96,
            bias: Presence::Absent,
        });
        head.push(HeadLayer::Activation(Activation::GeluErf));
        head.push(HeadLayer::Norm { name: "cls.norm" });
    }),
    ("BERT of distances with a gate", |d| {
        bert(d);
        for layer in &mut d.layers {
            layer.attention_mut().alibi = Some(8.0);
            layer.dense_mut().is_gated = true;
        }
    }),
    ("BERT with norms of queries and keys, and of sums twice", |d| {
        bert(d);
        for layer in &mut d.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::RowAsLayers);
            layer.norms = NormPlacement::AfterSumTwice;
        }
    }),
    ("layers with stores of different shapes", |d| {
        d.layers[0].attention_mut().n_kv_heads = 4;
    }),
    ("a decoder that pools", |d| {
        for layer in &mut d.layers {
            layer.attention_mut().is_causal = true;
        }
        pool(d, Pooling::Last);
    }),
];

fn pool(descriptor: &mut Descriptor, kind: Pooling) {
    descriptor.pooling = Some(PoolingDescriptor::embedding(kind));
}

fn bert(descriptor: &mut Descriptor) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    descriptor.token_types = Presence::Required;
    descriptor.embedding_norm = Some(EmbeddingNorm::Weighted);
    descriptor.has_output_norm = false;
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::AfterSum;
        layer.attention_mut().rope = None;
        layer.attention_mut().qkv_bias = Presence::Required;
        layer.attention_mut().output_bias = Presence::Required;
        layer.dense_mut().is_gated = false;
        layer.dense_mut().bias = Presence::Required;
        layer.dense_mut().activation = Activation::GeluErf;
    }
}

fn encoder(change: fn(&mut Descriptor)) -> Descriptor {
    let mut descriptor = tiny_llama();
    descriptor.head = OutputHead::None;
    for layer in &mut descriptor.layers {
        layer.attention_mut().is_causal = false;
    }
    pool(&mut descriptor, Pooling::Mean);
    change(&mut descriptor);
    descriptor
}

/// Every feature of an encoder gives the oracle's rows, in f32 and with f32 working memory.
pub fn encoders_agree_with_the_oracle(subject: &Subject) {
    for (name, change) in subject.tried("encoders", ENCODERS) {
        let mut random = Random::named(21, name);
        let model = TinyModel::random(encoder(*change), TensorType::F32, 22);
        let texts = random_texts(&mut random, model.descriptor.n_vocab);
        let together = |executor: &mut dyn Executor| pooled(executor, &texts, texts.len());
        let expected = together(&mut oracle(&model, KvType::F32));
        let found = together(&mut on(subject, 2, &model, KvType::F32));
        assert_close(name, &expected, &found, F32_TOLERANCE);
    }
}

/// A text's row does not depend on the other texts of its step or on the number of threads.
pub fn encoded_texts_do_not_depend_on_company(subject: &Subject) {
    for (name, change) in subject.tried("encoders in company", ENCODERS) {
        let mut random = Random::named(23, name);
        let model = TinyModel::random(encoder(*change), TensorType::F16, 24);
        let texts = random_texts(&mut random, model.descriptor.n_vocab);
        let alone = pooled(&mut on(subject, 1, &model, KvType::F16), &texts, 1);
        for n_threads in [1, 3] {
            let mut executor = on(subject, n_threads, &model, KvType::F16);
            let together = pooled(&mut executor, &texts, texts.len());
            match subject.company {
                Company::Bits => assert_same_bits(name, &alone, &together),
                Company::Within(tolerance) => assert_close(name, &alone, &together, tolerance),
            }
        }
    }
}

/// Every feature of an encoder changes the oracle's rows; otherwise a variant would test nothing.
pub fn every_encoder_differs_from_the_plain_one() {
    let mut random = Random::new(25);
    let texts = random_texts(&mut random, 96);
    let rows = |change| {
        let model = TinyModel::random(encoder(change), TensorType::F32, 26);
        pooled(&mut oracle(&model, KvType::F32), &texts, texts.len())
    };
    let plain = rows(ENCODERS[0].1);
    for (name, change) in &ENCODERS[1..] {
        let changed = rows(*change);
        let same_width = changed[3].len() == plain[3].len();
        let difference =
            (plain[3].iter().zip(&changed[3])).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(
            !same_width || difference > 10.0 * F32_TOLERANCE,
            "{name}: {difference}"
        );
    }
}

fn random_texts(random: &mut Random, n_vocab: usize) -> Vec<Vec<u32>> {
    [1, 2, 17, 45]
        .map(|len| (0..len).map(|_| random.below(n_vocab) as u32).collect())
        .to_vec()
}

/// Returns the row of each text, with `n_at_once` texts in a step.
fn pooled(executor: &mut dyn Executor, texts: &[Vec<u32>], n_at_once: usize) -> Vec<Vec<f32>> {
    let limits = executor.limits().clone();
    let mut rows = Vec::new();
    for texts in texts.chunks(n_at_once) {
        let mut batch = ForwardBatch::default();
        let mut n_pages = 0;
        for text in texts {
            let end = n_pages + text.len().div_ceil(PAGE_TOKENS) as u32;
            let pages: Vec<u32> = (n_pages..end).collect();
            n_pages = end;
            let first = batch.n_tokens() as u32;
            batch.push_sequence(ids(text), 0, &pages);
            let last = batch.n_tokens() as u32 - 1;
            batch.hidden_rows.push(limits.pooled_row(first, last));
        }
        let output = run(executor, &batch).expect("a valid batch");
        rows.extend(output.hidden.chunks_exact(limits.n_embd).map(<[f32]>::to_vec));
    }
    rows
}

fn options(kv_type: KvType) -> ModelOptions {
    ModelOptions {
        max_batch_tokens: 128,
        max_batch_seqs: 4,
        kv_type,
        ..Default::default()
    }
}

fn oracle(model: &TinyModel, kv_type: KvType) -> Box<dyn Executor> {
    Box::new(model.load_on(NaiveBackend::new(), &options(kv_type)))
}

fn on(subject: &Subject, n_threads: usize, model: &TinyModel, kv_type: KvType) -> Box<dyn Executor> {
    (subject.load)(n_threads, model, &options(kv_type))
}
