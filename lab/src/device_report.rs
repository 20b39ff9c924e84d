//! `device-report`: the tables of docs/gpu.md, from the results of a device pack.
//!
//! The pack only collects. Predictions of the timing model appear next to the measurements, with the ratio,
//! if the results have a file of predictions. Invariant: a figure in a table was measured on a GPU, by the
//! results in the folder, or is called predicted; without measurements the command fails, and a part that did
//! not run has no row.

use std::{
    fmt::{Display, Write as _},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    kernel_bench,
    measure::{
        record::read,
        report::{self, Table},
    },
    predictions::Predictions,
};

/// Render the tables of docs/gpu.md from the results of a device pack; fails where nothing was measured
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the results, their archive, or what was in it.
    results: PathBuf,
    /// Also put the tables into this file, between its marks.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

/// The origin of a report's figures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figures {
    /// Figures of a GPU, and no others.
    Measured,
    /// Figures of a simulated GPU, which are counts without times.
    Rehearsed,
}

/// Marks around the tables.
const MARKS: [&str; 2] = ["<!-- device-report: begin -->", "<!-- device-report: end -->"];

/// Renders.
///
/// # Errors
/// A folder without a summary, results without a measurement, or a file without marks.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let unpacked = std::env::temp_dir().join(format!("tokenmill-results-{}", std::process::id()));
    let archive = args.results.join("results.tar.gz");
    let tables = if args.results.is_file() || archive.is_file() {
        let archive = if archive.is_file() {
            &archive
        } else {
            &args.results
        };
        let tables = unpack(archive, &unpacked).and_then(|()| tables(&unpacked, Figures::Measured));
        // A temporary folder that cannot be removed takes little room.
        let _ = fs::remove_dir_all(&unpacked);
        tables?
    } else {
        tables(&args.results, Figures::Measured)?
    };
    print!("{tables}");
    if let Some(path) = &args.into {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = between_marks(&text, &tables).with_context(|| {
            format!(
                "{} has no lines `{}` and `{}`",
                path.display(),
                MARKS[0],
                MARKS[1]
            )
        })?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Unpacks an archive of results into a separate folder.
///
/// # Errors
/// No `tar`, or no such archive.
pub(crate) fn unpack(archive: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(to)
        .status();
    let status = status.context("cannot run tar")?;
    ensure!(status.success(), "{} cannot be unpacked", archive.display());
    Ok(())
}

/// Returns all tables.
///
/// # Errors
/// Results without a summary, or without figures of that kind.
pub(crate) fn tables(results: &Path, figures: Figures) -> anyhow::Result<String> {
    let summary: Value = read(&results.join("summary.json"))?;
    let mut files: Vec<PathBuf> = fs::read_dir(results)
        .with_context(|| format!("cannot list {}", results.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let (mut benches, mut kernels, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    for path in files {
        // A part that failed may have left no JSON.
        let Ok(value) = read::<Value>(&path) else { continue };
        // A load measured from outside does not show whether the GPU is simulated.
        if value["report"]["completion_tokens_per_s"].is_number() {
            if figures == Figures::Measured {
                loads.push(value);
            }
            continue;
        }
        if value["is_measured"] != (figures == Figures::Measured) {
            continue;
        }
        if value["kernels"].is_array() {
            kernels.push(value);
        } else if value["graphs"].is_object() {
            benches.push(value);
        }
    }
    ensure!(
        !benches.is_empty() || !kernels.is_empty(),
        "nothing in {} was measured on a GPU",
        results.display()
    );
    let path = results.join("predictions.json");
    let predictions = if path.is_file() {
        read(&path)?
    } else {
        Predictions::default()
    };
    let mut text = provenance(&summary);
    text += &assumptions(&predictions, &summary);
    text += &parts(&summary);
    if !benches.is_empty() {
        text += &prompts(&benches, &predictions);
        text += &steps(&benches, &predictions);
    }
    for load in &loads {
        text += &serving(load);
    }
    for report in &kernels {
        text += &kernel_table(report);
    }
    Ok(text)
}

/// Returns a cell: the text of a value, or a dash.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() => text.replace('|', "/"),
        Value::Number(number) => number.to_string(),
        Value::Bool(is_so) => is_so.to_string(),
        _ => "-".to_owned(),
    }
}

fn number(value: &Value, unit: f64, digits: usize) -> String {
    report::number(value.as_f64().map(|value| value / unit), digits)
}

/// Renders the origin of the figures: date, commit, GPU and clocks.
fn provenance(summary: &Value) -> String {
    let mut table = Table::new(&["", ""]);
    for (name, key) in [
        ("date", "date"),
        ("commit", "commit"),
        ("GPU, driver, memory", "gpu"),
        ("clocks, power limit, temperature before", "gpu_before"),
        ("the same after", "gpu_after"),
        ("machine", "machine"),
        ("SHA-256 of the kernels", "kernels_sha256"),
        ("command", "command"),
    ] {
        table.row(&[&name, &cell(&summary[key])]);
    }
    format!("{table}\n")
}

fn parts(summary: &Value) -> String {
    let mut table = Table::new(&["part", "outcome", "seconds", ""]);
    for part in summary["parts"].as_array().into_iter().flatten() {
        let reason = match &part["reason"] {
            Value::String(reason) => reason.replace('|', "/"),
            _ => String::new(),
        };
        let [name, status, seconds] = ["part", "status", "seconds"].map(|key| cell(&part[key]));
        table.row(&[&name, &status, &seconds, &reason]);
    }
    format!("{table}\n")
}

/// Renders the assumptions of the predictions, and whether they are for the measured kernels.
fn assumptions(predictions: &Predictions, summary: &Value) -> String {
    if predictions.source.is_empty() {
        return String::new();
    }
    let are_same = summary["kernels_sha256"] == predictions.kernels_sha256;
    let kernels = if are_same {
        "the kernels that were measured"
    } else {
        "other kernels than were measured"
    };
    let mut text = format!(
        "Predicted figures are those of {}, for {}, at commit {}, of {kernels}:\n\n",
        predictions.source, predictions.device, predictions.commit,
    );
    for line in &predictions.assumptions {
        let _ = writeln!(text, "- {line}");
    }
    for (name, problem) in &predictions.problems {
        let _ = writeln!(text, "- not predicted: {name}: {problem}");
    }
    text + "\n"
}

/// Returns a measured rate, a predicted one, and their ratio.
fn compared(measured: &Value, predicted: Option<f64>, digits: usize) -> [String; 3] {
    let measured = measured.as_f64();
    let ratio = measured
        .zip(predicted)
        .map(|(measured, predicted)| measured / predicted);
    [(measured, digits), (predicted, digits), (ratio, 2)].map(|(value, digits)| report::number(value, digits))
}

/// Returns the number of tokens of a bench's prompt.
fn n_prompt(bench: &Value) -> usize {
    bench["graphs"]["prefill"]["tokens"].as_u64().unwrap_or(0) as usize
}

/// Returns the model's file, and how its tokens are chosen if that is not by the largest logit.
fn model(bench: &Value) -> String {
    let sampled = if bench["is_sampled"] == true {
        ", sampled"
    } else {
        ""
    };
    format!("{}{sampled}", cell(&bench["model"]))
}

fn prompts(benches: &[Value], predictions: &Predictions) -> String {
    let mut table = Table::new(&["model", "prompt", "tokens/s", "predicted", "measured / predicted"]);
    for bench in benches {
        let n_prompt = n_prompt(bench);
        let predicted = predictions.tokens_per_s(&cell(&bench["model"]), n_prompt, 0);
        let [measured, predicted, ratio] =
            compared(&bench["graphs"]["prefill"]["tokens_per_s"], predicted, 0);
        table.row(&[&model(bench), &n_prompt, &measured, &predicted, &ratio]);
    }
    format!("{table}\n")
}

fn steps(benches: &[Value], predictions: &Predictions) -> String {
    let mut table = Table::new(&[
        "model",
        "behind",
        "sequences",
        "tokens/s",
        "predicted",
        "measured / predicted",
        "eager, tokens/s",
        "share of the copy bandwidth",
    ]);
    for bench in benches {
        let weights = bench["load"]["weights_bytes"].as_f64();
        let copy = bench["copy_bytes_per_s"].as_f64();
        for row in bench["graphs"]["decode"].as_array().into_iter().flatten() {
            let n_seqs = row["sequences"].as_f64();
            // The predicted step takes the likeliest token.
            let predicted = (bench["is_sampled"] != true)
                .then(|| predictions.tokens_per_s(&cell(&bench["model"]), n_prompt(bench), n_seqs? as usize))
                .flatten();
            let eager = (bench["eager"]["decode"].as_array().into_iter().flatten())
                .find(|eager| eager["sequences"] == row["sequences"])
                .map_or(Value::Null, |eager| eager["tokens_per_s"].clone());
            // A step reads all weights once, whatever the sequences.
            let share = (|| {
                let steps_per_s = row["tokens_per_s"].as_f64()? / n_seqs?;
                Some(Value::from(steps_per_s * weights? / copy?))
            })();
            let [measured, predicted, ratio] = compared(&row["tokens_per_s"], predicted, 1);
            table.row(&[
                &model(bench),
                &n_prompt(bench),
                &number(&row["sequences"], 1.0, 0),
                &measured,
                &predicted,
                &ratio,
                &number(&eager, 1.0, 1),
                &format!("{} %", number(&share.unwrap_or(Value::Null), 0.01, 1)),
            ]);
        }
    }
    format!("{table}\n")
}

/// Renders the throughput and the latencies that clients of the server measured.
fn serving(load: &Value) -> String {
    let load = &load["report"];
    let mut table = Table::new(&[
        "requests",
        "answered",
        "tokens/s",
        "first token, ms, p50 / p99",
        "between tokens, ms, p50 / p99",
    ]);
    let pair = |key: &str| {
        format!(
            "{} / {}",
            number(&load[key]["p50"], 1.0, 1),
            number(&load[key]["p99"], 1.0, 1)
        )
    };
    table.row(&[
        &cell(&load["requests"]),
        &cell(&load["answered"]),
        &number(&load["completion_tokens_per_s"], 1.0, 0),
        &pair("first_token_ms"),
        &pair("inter_token_ms"),
    ]);
    format!("{table}\n")
}

fn kernel_table(report: &Value) -> String {
    let mut table = Table::new(&[&["kernel", "shape"][..], &kernel_bench::titles()].concat());
    for row in report["kernels"].as_array().into_iter().flatten() {
        // A row that failed has a reason and no figures.
        let shape = if row["problem"].is_string() {
            "problem"
        } else {
            "shape"
        };
        let mut cells = vec![cell(&row["name"]), cell(&row[shape])];
        cells.extend(kernel_bench::figures(row));
        let cells: Vec<&dyn Display> = cells.iter().map(|cell| cell as &dyn Display).collect();
        table.row(&cells);
    }
    format!("{table}\n")
}

/// Puts the tables between the marks of a text.
fn between_marks(text: &str, tables: &str) -> Option<String> {
    let [begin, end] = MARKS;
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n\n{tables}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in files {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        folder
    }

    fn summary() -> Value {
        json!({ "commit": "abc", "gpu": "a GPU", "parts": [
            { "part": "parity", "status": "passed", "reason": "", "seconds": 7 },
            { "part": "sanitizer", "status": "late", "reason": "no time | left", "seconds": 0 },
        ] })
    }

    fn bench(is_measured: bool) -> Value {
        json!({
            "model": "m.gguf", "is_measured": is_measured, "copy_bytes_per_s": 4e9, "load": { "weights_bytes": 1e9 },
            "graphs": { "prefill": { "tokens": 512, "tokens_per_s": 1000.4 }, "decode": [{ "sequences": 2, "tokens_per_s": 4.0 }] },
            "eager": { "decode": [{ "sequences": 2, "tokens_per_s": 3.0 }] },
        })
    }

    #[test]
    fn tables_have_what_was_measured_next_to_what_was_predicted() {
        let kernels = json!({ "is_measured": true, "kernels": [
            { "name": "o", "us": 4.4, "predicted_us": 4.0, "measured_by_predicted": 1.1, "bytes_per_s": 2e12 },
            { "name": "down", "problem": "too | far apart" },
        ] });
        let serving = json!({ "concurrency": 2, "report": { "requests": 4, "answered": 4, "completion_tokens_per_s": 99.6,
            "first_token_ms": { "p50": 10.0, "p99": 20.0 }, "inter_token_ms": { "p50": 3.0, "p99": 4.0 } } });
        let predictions = json!({ "source": "a model", "device": "h200", "commit": "abc", "kernels_sha256": "00",
            "assumptions": ["clocks"], "not_predicted": { "down": "no registers" }, "us": { "m, 2 behind 512": 4e5, "m, prompt of 512": 256_000.0 } });
        let folder = results(&[
            ("summary.json", summary()),
            ("bench.json", bench(true)),
            ("kernel-bench.json", kernels),
            ("predictions.json", predictions),
            ("serving.json", serving),
        ]);
        let text = tables(folder.path(), Figures::Measured).unwrap();
        for line in [
            "| m.gguf | 512 | 1000 | 2000 | 0.50 |",
            "| m.gguf | 512 | 2 | 4.0 | 5.0 | 0.80 | 3.0 | 50.0 % |",
            "| o | - | 4.40 | 4.00 | 1.10 | 2000 | - |",
            "| down | too / far apart | - |",
            "| 4 | 4 | 100 | 10.0 / 20.0 | 3.0 / 4.0 |",
            "| sanitizer | late | 0 | no time / left |",
            "Predicted figures are those of a model, for h200, at commit abc, of other kernels than were measured:",
            "- clocks",
            "- not predicted: down: no registers",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let page = format!("before\n{}\nold\n{}\nafter", MARKS[0], MARKS[1]);
        let page = between_marks(&page, &text).unwrap();
        assert!(page.starts_with("before\n") && page.ends_with("\nafter") && !page.contains("old"));
        assert_eq!(between_marks("no marks", &text), None);
    }

    #[test]
    fn results_without_a_measurement_are_refused() {
        let folder = results(&[("summary.json", summary()), ("bench.json", bench(false))]);
        let error = tables(folder.path(), Figures::Measured).unwrap_err().to_string();
        assert!(error.contains("was measured on a GPU"), "{error}");
        assert!(tables(results(&[]).path(), Figures::Measured).is_err());
    }
}
