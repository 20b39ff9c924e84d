//! The conformance suite: the claims that every [`Backend`](tokenmill_backend::Backend) must fulfil, checked through whole
//! tiny networks.
//!
//! The suite checks networks rather than single operations, so that a backend may fuse operations freely. Each function is
//! one claim and panics if it does not hold; a backend's test file calls them all. The naive backend is the oracle.

mod compare;
mod encoders;
mod known;
mod scene;
mod subject;

use tokenmill_backend::{
    Executor, ForwardBatch, KvType, PageCopy, PageGroup, RowOutput, SampleRow, SamplingParams, SeqState,
    StateSave, TokenSource,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{FfnDescriptor, MixerDescriptor};

use crate::{
    EXPERT_VARIANTS, cases,
    expert_variants::EXPERT_LAYER_VARIANTS,
    generate::{ids, run},
    latent_variants::{LATENT_VARIANTS, WIDE_LATENT_VARIANTS},
    random::Random,
    tiny_experts,
    tiny_model::{TinyModel, tiny_llama},
    variants::{LAYER_VARIANTS, STATE_VARIANTS, VARIANTS, Variant, WIDE_VARIANTS, random_variant},
};

pub use encoders::{
    encoded_texts_do_not_depend_on_company, encoders_agree_with_the_oracle,
    every_encoder_differs_from_the_plain_one,
};
pub use subject::{Company, Features, RANDOM_NETWORKS, Subject};

use compare::{assert_close, assert_same_bits, assert_similar};
use known::{Case, known};
use scene::{Scene, on, on_with};

/// Passes the names of all claims about a backend, the functions of this module that take a [`Subject`], to a macro.
///
/// ```
/// macro_rules! names {
///     ($($claim:ident),* $(,)?) => { [$(stringify!($claim)),*] };
/// }
/// assert!(tokenmill_testkit::conformance_claims!(names).contains(&"networks_agree_with_the_oracle"));
/// ```
#[macro_export]
macro_rules! conformance_claims {
    ($suite:ident) => {
        $suite! {
            networks_agree_with_the_oracle,
            rounded_types_agree_with_the_oracle,
            experts_agree_with_the_oracle,
            rounded_experts_agree_with_the_oracle,
            rows_of_experts_do_not_depend_on_company,
            rows_do_not_depend_on_company,
            only_the_rows_asked_for_come_back,
            sampled_rows_feed_the_next_step,
            copied_pages_hold_what_they_were_copied_from,
            snapshots_hold_the_state_between_two_tokens,
            a_row_that_is_not_finite_fails_alone,
            encoders_agree_with_the_oracle,
            encoded_texts_do_not_depend_on_company,
        }
    };
}

/// Tolerance for f32 arithmetic in another order: logits are of size 1 to 10, so this is some ten roundings.
const F32_TOLERANCE: f32 = 2e-4;

/// Networks beyond those of attention and dense layers: with states, latent rows, or operations that few need.
fn more_variants() -> Vec<Variant> {
    [
        STATE_VARIANTS,
        LATENT_VARIANTS,
        LAYER_VARIANTS,
        EXPERT_LAYER_VARIANTS,
        WIDE_VARIANTS,
        WIDE_LATENT_VARIANTS,
    ]
    .concat()
}

/// Every feature of a descriptor, alone and in combinations, gives the oracle's logits, in f32 and with f32 KV.
pub fn networks_agree_with_the_oracle(subject: &Subject) {
    let more = more_variants();
    let mut networks = vec![(Case::Plain, "plain".to_owned(), tiny_llama())];
    for (name, change) in subject.tried("features", VARIANTS.iter().chain(&more)) {
        let mut descriptor = tiny_llama();
        change(&mut descriptor);
        networks.push((Case::Variant(name), (*name).to_owned(), descriptor));
    }
    networks.extend(cases("random networks", subject.n_random_networks).map(|number| {
        let (name, descriptor) = random_variant(&mut Random::new(number as u64));
        (Case::Random(number), name, descriptor)
    }));
    for (case, name, descriptor) in networks {
        let case = known(case, || {
            let scene = Scene::random(&mut Random::named(1, &name), descriptor.n_vocab);
            (
                TinyModel::random(descriptor, TensorType::F32, 3),
                scene,
                [KvType::F32; 2],
            )
        });
        assert_close(&name, &case.expected, &case.on(subject), F32_TOLERANCE);
    }
}

/// Rounded weight types and KV types give approximately the oracle's logits.
pub fn rounded_types_agree_with_the_oracle(subject: &Subject) {
    // Rows of 32 and of 256 weights, so that every format's block divides them. Heads of 32 for 8-bit KV.
    let mut descriptor = tiny_llama();
    descriptor.n_embd = 256;
    descriptor.ropes[0].head_dim = 64;
    descriptor.ropes[0].n_dims = 64;
    for layer in &mut descriptor.layers {
        layer.attention_mut().head_dim_k = 64;
        layer.attention_mut().head_dim_v = 64;
        layer.attention_mut().scale = 0.125;
        layer.dense_mut().n_ff = 512;
    }
    // Limits on the root mean square difference, relative to that of the logits. Both sides round K and V,
    // and differ only if a value is between two adjacent ones. These rare steps are 2^-11, or 1/127, or
    // 1/16 of the value for E4M3, or 1/8 for 4 bits. For keys in q8_0 the CPU also rounds queries, to steps
    // of 1/127 of the block's largest value, which moves scores by about as much as the rounding of keys. An
    // activation in an 8-bit block of 32 to 256 is off by about 0.7 % of the block's deviation; over the
    // products of two layers that adds up to a few percent, while a wrong scale or a swapped nibble would be
    // of order 1.
    let (half, byte, eight_bits, nibble, activations) = (1e-3, 2e-2, 3e-2, 5e-2, 0.1);
    let types = [
        (TensorType::F16, [KvType::F16, KvType::F16], half),
        (TensorType::BF16, [KvType::F16, KvType::F32], half),
        (TensorType::F32, [KvType::Q8_0, KvType::Q8_0], byte),
        (TensorType::F32, [KvType::F32, KvType::Q8_0], byte),
        (TensorType::F32, [KvType::Q8_0, KvType::F32], byte),
        (TensorType::F32, [KvType::E4M3, KvType::E4M3], eight_bits),
        (TensorType::F32, [KvType::E4M3, KvType::F32], eight_bits),
        (TensorType::F32, [KvType::F16, KvType::E4M3], eight_bits),
        (TensorType::F32, [KvType::Q4_0, KvType::Q4_0], nibble),
        (TensorType::F32, [KvType::Q4_0, KvType::F32], nibble),
        (TensorType::F32, [KvType::F16, KvType::Q4_0], nibble),
        (TensorType::Q8_0, [KvType::F32, KvType::F32], activations),
        (TensorType::Q4_0, [KvType::F16, KvType::F16], activations),
        (TensorType::Q4_K, [KvType::F32, KvType::F32], activations),
        (TensorType::Q6_K, [KvType::Q8_0, KvType::F16], activations),
    ];
    let is_stored = |(_, kv_types, _): &(TensorType, [KvType; 2], f64)| (subject.stores)(*kv_types);
    for (ty, kv_types, limit) in subject.tried("rounded types", types.into_iter().filter(is_stored)) {
        let name = format!("{} with {kv_types:?} KV", ty.name());
        let case = known(Case::Rounded(ty, kv_types), || {
            let scene = Scene::random(&mut Random::named(2, &name), descriptor.n_vocab);
            (TinyModel::random(descriptor.clone(), ty, 4), scene, kv_types)
        });
        assert_similar(&name, &case.expected, &case.on(subject), limit);
    }
    // Latent rows in half precision may have separate kernels.
    let latent = LATENT_VARIANTS.iter().chain(WIDE_LATENT_VARIANTS);
    for (name, change) in subject.tried("rounded latent rows", latent) {
        let mut descriptor = tiny_llama();
        change(&mut descriptor);
        // 8-bit codes are stored for rows of whole multiples of 16 columns.
        let is_whole = descriptor.layers.iter().all(|layer| match &layer.mixer {
            MixerDescriptor::Latent(latent) => [latent.kv_rank, latent.rotated_dim]
                .iter()
                .all(|width| width.is_multiple_of(16)),
            _ => false,
        });
        let kv_types = [(KvType::F16, half), (KvType::E4M3, eight_bits)];
        for (kv_type, limit) in kv_types.into_iter().take(if is_whole { 2 } else { 1 }) {
            if !(subject.stores)([kv_type; 2]) {
                continue;
            }
            let full_name = format!("{name}, {kv_type}");
            let case = known(Case::RoundedLatent(name, kv_type), || {
                let scene = Scene::random(&mut Random::named(2, name), descriptor.n_vocab);
                let model = TinyModel::random(descriptor.clone(), TensorType::F32, 4);
                (model, scene, [kv_type; 2])
            });
            assert_similar(&full_name, &case.expected, &case.on(subject), limit);
        }
    }
}

/// Every feature of experts gives the oracle's logits, in f32 and with f32 KV.
pub fn experts_agree_with_the_oracle(subject: &Subject) {
    let plain: Variant = ("plain experts", |_| {});
    let variants = subject.tried("features of experts", EXPERT_VARIANTS);
    for (name, change) in variants.into_iter().chain([&plain]) {
        let case = known(Case::Experts(name), || {
            let mut descriptor = tiny_experts();
            change(&mut descriptor);
            let scene = Scene::random(&mut Random::named(21, name), descriptor.n_vocab);
            let model = TinyModel::random(descriptor, TensorType::F32, 22);
            (model, scene, [KvType::F32; 2])
        });
        assert_close(name, &case.expected, &case.on(subject), F32_TOLERANCE);
    }
}

/// Experts of every type give about the oracle's logits. All experts are in use, since a rounded activation may turn a choice
/// between two that are nearly as good.
pub fn rounded_experts_agree_with_the_oracle(subject: &Subject) {
    let mut descriptor = tiny_experts();
    descriptor.n_embd = 256;
    for layer in &mut descriptor.layers {
        let FfnDescriptor::Moe(moe) = &mut layer.ffn else {
            unreachable!("every layer has experts");
        };
        moe.router.n_experts = 3;
        moe.router.n_used = 3;
        moe.n_ff = 256;
    }
    let formats = (tokenmill_quant::Format::all().iter()).filter(|format| format.has_encoder());
    for format in subject.tried("types of experts", formats) {
        let ty = format.tensor_type();
        let case = known(Case::RoundedExperts(ty), || {
            let mut model = TinyModel::random(descriptor.clone(), TensorType::F32, 24);
            for layer_idx in 0..2 {
                for part in ["gate", "up", "down"] {
                    model.set_type(&format!("blk.{layer_idx}.ffn_{part}_exps.weight"), ty, 25);
                }
            }
            let scene = Scene::random(&mut Random::named(23, ty.name()), descriptor.n_vocab);
            (model, scene, [KvType::F32; 2])
        });
        // As for dense networks: activations of 8 bits.
        let limit = if format.is_float() { 1e-3 } else { 0.1 };
        assert_similar(ty.name(), &case.expected, &case.on(subject), limit);
    }
}

/// A row that goes to experts does not depend on the rows that go there with it.
pub fn rows_of_experts_do_not_depend_on_company(subject: &Subject) {
    let mut random = Random::new(26);
    for ty in [TensorType::F32, TensorType::Q8_0, TensorType::Q4_0] {
        let model = TinyModel::random(tiny_experts(), ty, 27);
        let scene = Scene::random(&mut random, model.descriptor.n_vocab);
        let expected = scene
            .alone(&mut random)
            .play(&mut on(subject, 1, &model, KvType::F32));
        for n_threads in [1, 2, 3] {
            let company = scene.rescheduled(&mut random);
            let found = company.play(&mut on(subject, n_threads, &model, KvType::F32));
            let name = format!("experts in {}, {n_threads} threads", ty.name());
            match subject.company {
                Company::Bits => assert_same_bits(&name, &expected, &found),
                // A choice between two nearly equal experts may change if products add in another order.
                Company::Within(tolerance) if ty == TensorType::F32 => {
                    assert_close(&name, &expected, &found, tolerance);
                }
                Company::Within(_) => {}
            }
        }
    }
}

/// A row does not depend on the other sequences of its step, on the chunks its sequence came in, on its pages, or on the
/// number of threads.
pub fn rows_do_not_depend_on_company(subject: &Subject) {
    let more_variants = more_variants();
    for case in subject.tried("networks in company", 0..12 + more_variants.len()) {
        let mut random = Random::new(500 + case as u64);
        let is_more = (1..=more_variants.len()).contains(&case);
        let ty = [
            TensorType::F32,
            TensorType::F16,
            TensorType::Q8_0,
            TensorType::Q4_0,
        ][case % 4];
        // Their widths do not divide into blocks.
        let ty = if is_more { TensorType::F32 } else { ty };
        let kv_type = [KvType::F16, KvType::F32][case % 2];
        let (name, descriptor) = match case {
            0 => ("plain".to_owned(), tiny_llama()),
            // One of those networks after the other, among the plain and the random ones.
            _ if is_more => {
                let (name, change) = more_variants[case - 1];
                let mut descriptor = tiny_llama();
                change(&mut descriptor);
                (name.to_owned(), descriptor)
            }
            // Partial heads and odd widths do not divide into blocks; the quantized types stay with the plain network.
            _ if case % 4 < 2 => random_variant(&mut random),
            _ => ("plain".to_owned(), tiny_llama()),
        };
        let model = TinyModel::random(descriptor, ty, 6);
        let scene = Scene::random(&mut random, model.descriptor.n_vocab);
        let alone = scene.alone(&mut random);
        let expected = alone.play(&mut on(subject, 1, &model, kv_type));
        for &n_threads in subject.n_threads {
            let company = scene.rescheduled(&mut random);
            let found = company.play(&mut on(subject, n_threads, &model, kv_type));
            let name = format!("{name} in {}, {n_threads} threads", ty.name());
            match subject.company {
                Company::Bits => assert_same_bits(&name, &expected, &found),
                Company::Within(tolerance) => assert_close(&name, &expected, &found, tolerance),
            }
        }
    }
}

/// Rows that are not requested change nothing, and hidden states come back for the requested rows.
pub fn only_the_rows_asked_for_come_back(subject: &Subject) {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 7);
    let (n_vocab, n_embd) = (model.descriptor.n_vocab, model.descriptor.n_embd);
    let tokens: Vec<u32> = (0..20).map(|i| i * 7 % 90).collect();
    let ask = |logit_rows: &[u32], hidden_rows: &[u32]| {
        let mut batch = ForwardBatch::default();
        batch.push_sequence(ids(&tokens), 0, &[3, 1]);
        batch.logit_rows = logit_rows.to_vec();
        batch.outputs = vec![RowOutput::Logits; logit_rows.len()];
        batch.hidden_rows = hidden_rows.to_vec();
        run(&mut on(subject, 2, &model, KvType::F32), &batch).unwrap()
    };
    let everything: Vec<u32> = (0..20).collect();
    let all = ask(&everything, &everything);
    let few = ask(&[4, 19], &[0, 4, 7]);
    let none = ask(&[], &[]);
    assert!(none.logits.is_empty() && none.hidden.is_empty() && none.sampled.is_empty());
    let pick = |values: &[f32], width: usize, rows: &[usize]| -> Vec<Vec<f32>> {
        rows.iter()
            .map(|row| values[row * width..(row + 1) * width].to_vec())
            .collect()
    };
    assert_close(
        "logits of some rows",
        &pick(&all.logits, n_vocab, &[4, 19]),
        &pick(&few.logits, n_vocab, &[0, 1]),
        F32_TOLERANCE,
    );
    assert_close(
        "hidden states of some rows",
        &pick(&all.hidden, n_embd, &[0, 4, 7]),
        &pick(&few.hidden, n_embd, &[0, 1, 2]),
        F32_TOLERANCE,
    );
}

/// A token that names the row sampled before gives the results of the known token, with its penalties.
pub fn sampled_rows_feed_the_next_step(subject: &Subject) {
    let model = TinyModel::random(tiny_llama(), TensorType::F32, 8);
    let params = std::sync::Arc::new(SamplingParams {
        temperature: 1.0,
        repeat_penalty: 1.5,
        seed: 9,
        n_logprobs: Some(2),
        ..Default::default()
    });
    let prompts: [&[u32]; 2] = [&[1, 2, 3], &[40, 41, 42, 43, 44]];
    let n_steps = 12;

    // One step at a time, every token known.
    let mut expected: Vec<Vec<u32>> = vec![Vec::new(); 2];
    let mut executor = on(subject, 2, &model, KvType::F32);
    for step in 0..n_steps {
        let mut batch = ForwardBatch::default();
        for (seq_idx, prompt) in prompts.iter().enumerate() {
            let known: Vec<u32> = prompt.iter().chain(&expected[seq_idx]).copied().collect();
            let new = if step == 0 { 0 } else { known.len() - 1 };
            let pages = [seq_idx as u32 * 2, seq_idx as u32 * 2 + 1];
            batch.push_sequence(ids(&known[new..]), new as u32, &pages);
            let start = batch.history.len() as u32;
            batch.history.extend(&known);
            batch.want_last(sample(&params, start..batch.history.len() as u32));
        }
        let output = run(&mut executor, &batch).unwrap();
        for (tokens, sampled) in expected.iter_mut().zip(&output.sampled) {
            tokens.push(sampled.unwrap().unwrap().id);
        }
        assert_eq!(output.top_of(1).len(), 2, "two log-probabilities a row");
    }

    // Always one step ahead: only the device knows the newest token.
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); 2];
    let mut executor = on(subject, 2, &model, KvType::F32);
    let mut open = None;
    for step in 0..=n_steps {
        let next = (step < n_steps).then(|| {
            let mut batch = ForwardBatch::default();
            for (seq_idx, prompt) in prompts.iter().enumerate() {
                let known: Vec<u32> = prompt.iter().chain(&found[seq_idx]).copied().collect();
                let pages = [seq_idx as u32 * 2, seq_idx as u32 * 2 + 1];
                if step == 0 {
                    batch.push_sequence(ids(&known), 0, &pages);
                } else {
                    let newest = [TokenSource::SampledRow(seq_idx as u32)];
                    batch.push_sequence(newest, known.len() as u32, &pages);
                }
                let start = batch.history.len() as u32;
                batch.history.extend(&known);
                batch.want_last(sample(&params, start..batch.history.len() as u32));
            }
            executor.submit(&batch).unwrap()
        });
        let mut output = tokenmill_backend::StepOutput::default();
        if let Some(ticket) = std::mem::replace(&mut open, next) {
            executor.wait(ticket, &mut output).unwrap();
            for (tokens, sampled) in found.iter_mut().zip(&output.sampled) {
                tokens.push(sampled.unwrap().unwrap().id);
            }
        }
    }
    assert_eq!(found, expected);
    assert_ne!(found[0], found[1], "different prompts continue differently");
}

/// A copied page works like its original, in the group of layers in which it was copied.
pub fn copied_pages_hold_what_they_were_copied_from(subject: &Subject) {
    let tokens: Vec<u32> = (0..24).map(|i| i * 5 % 90).collect();
    for has_window in [false, true] {
        let mut descriptor = tiny_llama();
        descriptor.layers[0].attention_mut().window = has_window.then_some(20);
        let model = TinyModel::random(descriptor, TensorType::F32, 10);
        let mut executor = on(subject, 1, &model, KvType::F16);
        let play = |executor: &mut dyn Executor, first: usize, end, main: [u32; 2], window: [u32; 2]| {
            let mut batch = ForwardBatch::default();
            batch.push_sequence(ids(&tokens[first..end]), first as u32, &main);
            if has_window {
                batch.push_window_pages(&window);
            }
            batch.want_last(RowOutput::Logits);
            vec![run(executor, &batch).unwrap().logits]
        };
        play(&mut executor, 0, 23, [2, 5], [5, 3]);
        let expected = play(&mut executor, 23, 24, [2, 5], [5, 3]);
        let copies = [(2, 7), (5, 2)].map(|(from, to)| PageCopy::Duplicate { from, to });
        executor.copy_pages(PageGroup::Main, &copies).unwrap();
        let found = play(&mut executor, 23, 24, [7, 2], [5, 3]);
        assert_same_bits("copied pages", &expected, &found);
        if has_window {
            let copies = [(5, 1), (3, 5)].map(|(from, to)| PageCopy::Duplicate { from, to });
            executor.copy_pages(PageGroup::Window, &copies).unwrap();
            let found = play(&mut executor, 23, 24, [7, 2], [1, 5]);
            assert_same_bits("copied pages of windows", &expected, &found);
        }
    }
}

/// A sequence that continues from a snapshot gets the same results as before, whoever has used its slot since.
pub fn snapshots_hold_the_state_between_two_tokens(subject: &Subject) {
    let with_states = more_variants().into_iter().filter_map(|(name, change)| {
        let mut descriptor = tiny_llama();
        change(&mut descriptor);
        let has_states = descriptor.state_layers().next().is_some();
        has_states.then_some((name, descriptor))
    });
    for (name, descriptor) in subject.tried("networks with states", with_states) {
        let mut random = Random::named(21, name);
        let model = TinyModel::random(descriptor, TensorType::F32, 14);
        let mut executor = on(subject, 2, &model, KvType::F32);
        let tokens: Vec<u32> = (0..40).map(|_| random.below(90) as u32).collect();
        let mut play = |first: usize, end: usize, state: SeqState| {
            let mut batch = ForwardBatch::default();
            batch.push_sequence(ids(&tokens[first..end]), first as u32, &[3, 1, 2]);
            batch.states.push(state);
            batch.logit_rows = (0..(end - first) as u32).collect();
            batch.outputs = vec![RowOutput::Logits; end - first];
            vec![run(&mut executor, &batch).unwrap().logits]
        };
        for _ in 0..4 {
            let (split, at) = (1 + random.below(30), random.below(9));
            let save = StateSave {
                n_tokens: (split + 1 + at) as u32,
                slot: 5,
            };
            play(0, split, SeqState::own(0));
            let saving = SeqState {
                save: Some(save),
                ..SeqState::own(0)
            };
            let first = split + 1 + at;
            let whole = play(split, 40, saving);
            let n_vocab = model.descriptor.n_vocab;
            let expected = vec![whole[0][(first - split) * n_vocab..].to_vec()];
            play(0, 20, SeqState::own(0));
            let restored = SeqState {
                from: 5,
                to: 0,
                save: None,
            };
            for _ in 0..2 {
                let found = play(first, 40, restored);
                match subject.company {
                    Company::Bits => assert_same_bits(name, &expected, &found),
                    Company::Within(tolerance) => assert_close(name, &expected, &found, tolerance),
                }
            }
        }
    }
}

/// Logits that are not finite fail their row and no other.
pub fn a_row_that_is_not_finite_fails_alone(subject: &Subject) {
    let mut model = TinyModel::random(tiny_llama(), TensorType::F32, 11);
    let (n_vocab, n_embd) = (model.descriptor.n_vocab, model.descriptor.n_embd);
    let mut embedding: Vec<f32> = (0..n_vocab * n_embd).map(|i| (i % 13) as f32 - 6.0).collect();
    embedding[5 * n_embd] = f32::NAN;
    model.set("token_embd.weight", &embedding);
    let mut executor = on(subject, 2, &model, KvType::F32);
    let mut batch = ForwardBatch::default();
    let params = std::sync::Arc::new(SamplingParams::default());
    for (page, token) in [(0, 4), (1, 5), (2, 6)] {
        batch.push_sequence(ids(&[token]), 0, &[page]);
        batch.want_last(sample(&params, 0..0));
    }
    let output = run(&mut executor, &batch).unwrap();
    let is_ok: Vec<bool> = output.sampled.iter().map(|row| row.unwrap().is_ok()).collect();
    assert_eq!(is_ok, [true, false, true]);
}

fn sample(params: &std::sync::Arc<SamplingParams>, history: std::ops::Range<u32>) -> RowOutput {
    RowOutput::Sample(SampleRow {
        params: std::sync::Arc::clone(params),
        history,
        n_prompt: 0,
        mask: tokenmill_backend::RowMask::Any,
    })
}

/// Every variant of a network changes the oracle's logits; otherwise it would test nothing.
pub fn every_variant_changes_what_the_oracle_says() {
    let mut random = Random::new(12);
    let scene = Scene::random(&mut random, 96).alone(&mut random);
    let logits = |descriptor| {
        let model = TinyModel::random(descriptor, TensorType::F32, 13);
        scene.play(&mut scene::oracle_with(&model, [KvType::F32; 2]))
    };
    for (base, variants) in [
        (tiny_llama(), VARIANTS),
        (tiny_llama(), LATENT_VARIANTS),
        (tiny_llama(), STATE_VARIANTS),
        (tiny_llama(), LAYER_VARIANTS),
        (tiny_llama(), WIDE_VARIANTS),
        (tiny_llama(), WIDE_LATENT_VARIANTS),
        (tiny_experts(), EXPERT_VARIANTS),
        (tiny_experts(), EXPERT_LAYER_VARIANTS),
    ] {
        let plain = logits(base.clone());
        for (name, change) in variants {
            let mut descriptor = base.clone();
            change(&mut descriptor);
            let difference = (plain.iter().flatten())
                .zip(logits(descriptor).iter().flatten())
                .fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            // Exact GELU and its approximation are much closer to each other than either is to SiLU; this is the difference
            // from SiLU.
            assert!(difference > 10.0 * F32_TOLERANCE, "{name}: {difference}");
        }
    }
}

/// The variants of a claim have different names, which identify cases.
pub fn variants_of_a_claim_have_different_names() {
    let of_networks: Vec<&str> = (VARIANTS.iter().chain(&more_variants()))
        .map(|(name, _)| *name)
        .collect();
    let of_experts: Vec<&str> = (EXPERT_VARIANTS.iter().map(|(name, _)| *name))
        .chain(["plain experts"])
        .collect();
    for names in [of_networks, of_experts] {
        let different: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }
}
