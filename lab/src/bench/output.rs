//! Output of the measuring programs: llama-bench's JSON, which `tokenmill bench` prints too, and
//! llama-batched-bench's lines.
//!
//! Output of other programs is untrusted: a missing field or a wrong type is an error that names it.

use anyhow::{Context, ensure};
use serde::Deserialize;

/// A row of `llama-bench -o json`.
#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct BenchRow {
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
    pub(super) n_depth: usize,
    /// Tokens per second of each repetition.
    pub(super) samples_ts: Vec<f64>,
}

/// A line of `llama-batched-bench --output-format jsonl`.
#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct BatchedRow {
    /// Sequences.
    pub(super) pl: usize,
    /// Tokens generated per second, of all sequences.
    pub(super) speed_tg: f64,
}

/// Reads the only row.
///
/// # Errors
/// Text that is not such JSON, or has another number of rows.
pub(super) fn bench_row(stdout: &str) -> anyhow::Result<BenchRow> {
    let mut rows: Vec<BenchRow> = serde_json::from_str(stdout).context("this is not llama-bench's JSON")?;
    ensure!(rows.len() == 1, "{} results instead of one", rows.len());
    Ok(rows.remove(0))
}

/// Reads the only line of JSON among lines of other text.
///
/// # Errors
/// There is none or more than one, or a field is missing.
pub(super) fn batched_row(stdout: &str) -> anyhow::Result<BatchedRow> {
    let lines: Vec<&str> = stdout
        .lines()
        .filter(|line| line.trim_start().starts_with('{'))
        .collect();
    ensure!(lines.len() == 1, "{} results instead of one", lines.len());
    serde_json::from_str(lines[0]).context("this is not llama-batched-bench's JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_llama_bench_is_read() {
        let stdout = r#"[
          {
            "build_commit": "unknown", "build_number": 0, "cpu_info": "AMD EPYC", "backends": "CPU",
            "model_type": "llama 1B Q4_K - Medium", "n_threads": 2, "type_k": "f16", "flash_attn": 1, "repack": true,
            "n_prompt": 0, "n_gen": 128, "n_depth": 2048, "avg_ts": 17.5, "stddev_ts": 0.5,
            "samples_ns": [ 7529411764, 7111111111 ],
            "samples_ts": [ 17, 18 ]
          }
        ]
        "#;
        let expected = BenchRow {
            n_prompt: 0,
            n_gen: 128,
            n_depth: 2048,
            samples_ts: vec![17.0, 18.0],
        };
        assert_eq!(bench_row(stdout).unwrap(), expected);
    }

    #[test]
    fn a_row_without_its_fields_is_an_error() {
        for stdout in ["", "[]", "[{\"n_prompt\": 0}]", "{\"samples_ts\": [1]}"] {
            assert!(bench_row(stdout).is_err(), "{stdout}");
        }
    }

    #[test]
    fn a_line_of_batched_bench_is_found_among_others() {
        let stdout = "\n{\"n_kv_max\": 512, \"pp\": 64, \"tg\": 64, \"pl\": 4, \"n_kv\": 512, \"t_pp\": 1.5, \
                      \"speed_pp\": 170.0, \"t_tg\": 6.5, \"speed_tg\": 39.25, \"t\": 8.0, \"speed\": 64.0}\n\n";
        let row = batched_row(stdout).unwrap();
        assert_eq!((row.pl, row.speed_tg), (4, 39.25));
        assert!(batched_row("no figures").is_err());
        assert!(batched_row("{}").is_err());
    }
}
