//! `device-report`: the tables of docs/gpu.md from what a device pack wrote.
//!
//! Separate from the pack, which only collects. Invariant: a figure in a table was measured on a GPU, by the results in the folder; where
//! there is none the command fails, and a part that did not run has no row.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use serde_json::Value;

/// Render the tables of docs/gpu.md from the results of a device pack; fails where nothing was measured
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the results.
    results: PathBuf,
    /// Also put the tables into this file, between its marks.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

/// Whose figures there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figures {
    /// Those of a GPU, and no others.
    Measured,
    /// Those of a simulated one, which are counts without times.
    Rehearsed,
}

/// Around the tables.
const MARKS: [&str; 2] = ["<!-- device-report: begin -->", "<!-- device-report: end -->"];

/// Renders.
///
/// # Errors
/// A folder without a summary, results without a measurement, or a file without marks.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let tables = tables(&args.results, Figures::Measured)?;
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

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// All tables.
///
/// # Errors
/// Results without a summary, or without figures of that kind.
pub(crate) fn tables(results: &Path, figures: Figures) -> anyhow::Result<String> {
    let summary = read(&results.join("summary.json"))?;
    let mut files: Vec<PathBuf> = fs::read_dir(results)
        .with_context(|| format!("cannot list {}", results.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let (mut benches, mut kernels) = (Vec::new(), Vec::new());
    for path in files {
        // A part that failed may have left no JSON.
        let Ok(value) = read(&path) else { continue };
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
    let mut text = provenance(&summary);
    text += &parts(&summary);
    if !benches.is_empty() {
        text += &steps(&benches);
    }
    for report in &kernels {
        text += &kernel_table(report);
    }
    Ok(text)
}

/// A cell: the text of a value, or a dash.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() => text.replace('|', "/"),
        Value::Number(number) => number.to_string(),
        Value::Bool(is_so) => is_so.to_string(),
        _ => "-".to_owned(),
    }
}

fn number(value: &Value, unit: f64, digits: usize) -> String {
    (value.as_f64()).map_or("-".to_owned(), |value| format!("{:.digits$}", value / unit))
}

/// What was measured, and on what.
fn provenance(summary: &Value) -> String {
    let mut text = "| | |\n|---|---|\n".to_owned();
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
        let _ = writeln!(text, "| {name} | {} |", cell(&summary[key]));
    }
    text + "\n"
}

fn parts(summary: &Value) -> String {
    let mut text = "| part | outcome | seconds | |\n|---|---|---|---|\n".to_owned();
    for part in summary["parts"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            cell(&part["part"]),
            cell(&part["status"]),
            cell(&part["seconds"]),
            match &part["reason"] {
                Value::String(reason) => reason.replace('|', "/"),
                _ => String::new(),
            }
        );
    }
    text + "\n"
}

fn steps(benches: &[Value]) -> String {
    let mut text = "| model | prompt, tokens/s | sequences | decode, tokens/s | eager, tokens/s | share of the copy bandwidth |\n\
        |---|---|---|---|---|---|\n"
        .to_owned();
    for bench in benches {
        let weights = bench["load"]["weights_bytes"].as_f64();
        let copy = bench["copy_bytes_per_s"].as_f64();
        for row in bench["graphs"]["decode"].as_array().into_iter().flatten() {
            let n_seqs = row["sequences"].as_f64();
            let eager = (bench["eager"]["decode"].as_array().into_iter().flatten())
                .find(|eager| eager["sequences"] == row["sequences"])
                .map_or(Value::Null, |eager| eager["tokens_per_s"].clone());
            // A step reads all weights once, whatever the sequences.
            let share = (|| {
                let steps_per_s = row["tokens_per_s"].as_f64()? / n_seqs?;
                Some(Value::from(steps_per_s * weights? / copy?))
            })();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} % |",
                cell(&bench["model"]),
                number(&bench["graphs"]["prefill"]["tokens_per_s"], 1.0, 0),
                number(&row["sequences"], 1.0, 0),
                number(&row["tokens_per_s"], 1.0, 1),
                number(&eager, 1.0, 1),
                number(&share.unwrap_or(Value::Null), 0.01, 1),
            );
        }
    }
    text + "\n"
}

fn kernel_table(report: &Value) -> String {
    let mut text = "| kernel | shape | us | predicted us | GB/s | share of the copy bandwidth | TFLOP/s | registers | local bytes |\n\
        |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in report["kernels"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} % | {} | {} | {} |",
            cell(&row["name"]),
            cell(&row["shape"]),
            number(&row["us"], 1.0, 2),
            number(&row["predicted_us"], 1.0, 2),
            number(&row["bytes_per_s"], 1e9, 0),
            number(&row["share_of_copy"], 0.01, 1),
            number(&row["flops_per_s"], 1e12, 2),
            number(&row["registers"], 1.0, 0),
            number(&row["local_bytes"], 1.0, 0),
        );
    }
    text + "\n"
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
            "graphs": { "prefill": { "tokens_per_s": 1000.4 }, "decode": [{ "sequences": 2, "tokens_per_s": 4.0 }] },
            "eager": { "decode": [{ "sequences": 2, "tokens_per_s": 3.0 }] },
        })
    }

    #[test]
    fn tables_have_what_was_measured() {
        let kernels =
            json!({ "is_measured": true, "kernels": [{ "name": "o", "us": 4.4, "bytes_per_s": 2e12 }] });
        let folder = results(&[
            ("summary.json", summary()),
            ("bench.json", bench(true)),
            ("kernel-bench.json", kernels),
        ]);
        let text = tables(folder.path(), Figures::Measured).unwrap();
        assert!(
            text.contains("| m.gguf | 1000 | 2 | 4.0 | 3.0 | 50.0 % |"),
            "{text}"
        );
        assert!(text.contains("| o | - | 4.40 | - | 2000 | - % |"), "{text}");
        assert!(
            text.contains("| sanitizer | late | 0 | no time / left |"),
            "{text}"
        );
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
