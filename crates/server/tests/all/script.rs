//! An executor that generates the tokens of a test's script, for tests of the handling of answers.
//!
//! A request is known by its seed. Its first sampled token is the script's first, and so on; then the text
//! ends.

use std::{collections::HashMap, thread, time::Duration};

use tokenmill_backend::{RowOutput, SampledToken, StepOutput};

use crate::played::Played;

pub(crate) fn script(
    n_vocab: usize,
    end_id: u32,
    n_pages: usize,
    tokens: Vec<u32>,
    step_time: Duration,
) -> Played {
    // Where each request's answer begins, by its seed.
    let mut starts: HashMap<u64, u32> = HashMap::new();
    Played::new([n_vocab, 2048, n_pages], move |batch| {
        thread::sleep(step_time);
        let mut output = StepOutput::default();
        output.top_starts.push(0);
        for (&row, wanted) in batch.logit_rows.iter().zip(&batch.outputs) {
            let RowOutput::Sample(sample) = wanted else {
                panic!("only samples are scripted");
            };
            let position = batch.positions[row as usize];
            let start = *starts.entry(sample.params.seed).or_insert(position);
            let id = tokens.get((position - start) as usize).copied();
            output.sampled.push(Some(Ok(SampledToken {
                id: id.unwrap_or(end_id),
                logprob: None,
            })));
            output.top_starts.push(0);
        }
        output
    })
}
