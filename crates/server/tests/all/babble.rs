//! An executor without a network, for tests in which many requests matter and their words do not.
//!
//! A token is a hash of its seed and position, or the next one that its row's mask allows, so that answers end after a few dozen tokens
//! and repeat.

use tokenmill_backend::{
    ForwardBatch, RowError, RowMask, RowOutput, SampleRow, SampledToken, StepOutput, TokenLogprob,
};

use crate::played::{N_EMBD, Played};

/// One token in thirty is `end_id`, which ends texts.
pub(crate) fn babble(n_vocab: usize, end_id: u32, n_pages: usize) -> Played {
    Played::new([n_vocab, 256, n_pages], move |batch| {
        answer(batch, n_vocab as u32, end_id)
    })
}

fn choose(seed: u64, position: u32, n_vocab: u32, end_id: u32) -> u32 {
    let state = mix(seed ^ u64::from(position) << 32);
    if state.is_multiple_of(30) {
        return end_id;
    }
    (state % u64::from(n_vocab)) as u32
}

fn answer(batch: &ForwardBatch, n_vocab: u32, end_id: u32) -> StepOutput {
    let mut output = StepOutput::default();
    output.top_starts.push(0);
    for (&row, wanted) in batch.logit_rows.iter().zip(&batch.outputs) {
        let position = batch.positions[row as usize];
        match wanted {
            RowOutput::Logits => {
                let logits = (0..n_vocab).map(|id| ((id ^ position) % 17) as f32);
                output.logits.extend(logits);
                output.sampled.push(None);
            }
            RowOutput::Sample(sample) => {
                let chosen = choose(sample.params.seed, position, n_vocab, end_id);
                let allowed = (chosen..n_vocab)
                    .chain(0..chosen)
                    .find(|&id| is_allowed(batch, sample, id));
                let n_top = sample.params.n_logprobs.filter(|_| allowed.is_some());
                let sampled = allowed.ok_or(RowError::NothingAllowed);
                output.sampled.push(Some(sampled.map(|id| SampledToken {
                    id,
                    logprob: n_top.map(|_| -1.5),
                })));
                let id = allowed.unwrap_or_default();
                output
                    .top
                    .extend((0..n_top.unwrap_or(0)).map(|rank| TokenLogprob {
                        id: (id + rank) % n_vocab,
                        logprob: -(rank as f32),
                    }));
            }
        }
        output.top_starts.push(output.top.len() as u32);
    }
    let n_values = batch.hidden_rows.len() * N_EMBD;
    output.hidden.extend((0..n_values).map(|at| at as f32));
    output
}

fn is_allowed(batch: &ForwardBatch, row: &SampleRow, id: u32) -> bool {
    match row.mask {
        RowMask::Any => true,
        RowMask::Words(start) => batch.mask_words[start as usize + id as usize / 32] >> (id % 32) & 1 == 1,
        RowMask::Late(_) => unreachable!("the executor takes no late masks"),
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
