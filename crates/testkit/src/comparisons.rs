//! [`Comparisons`]: finds reference data, and counts the comparisons with it.
//!
//! Reference data was computed by other software. A core set is part of the repository (`tests/data`); the full set is in the
//! folder that `TOKENMILL_TEST_DATA` names. A test finds each fixture by its path, compares what exists, and never fails
//! because data is missing.
//!
//! libtest hides the output of tests that pass, so each test also writes its count to a file of the build folder, and the test
//! `tests/comparisons/report.rs` prints all counts and fails if the core set gives more. Invariant: skips are counted, and a
//! row of `ROWS` without a count is reported as one that did not run.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    thread,
};

use serde::{Deserialize, Serialize};
use tokenmill_model::{LoadError, Model};

/// A test that compares with other software.
#[derive(Debug)]
pub struct Row {
    /// The test, as the report names it.
    pub name: &'static str,
    /// The software or data that it is compared with.
    pub reference: &'static str,
    /// The number of comparisons with the core set alone. A smaller number means that a fixture is missing or
    /// is not found.
    pub n_core: usize,
}

const fn row(name: &'static str, reference: &'static str, n_core: usize) -> Row {
    Row {
        name,
        reference,
        n_core,
    }
}

/// The tests that compare with other software, in the order of the report.
const ROWS: [Row; 93] = [
    row("tensor types", "gguf-py", 33),
    row("malformed files", "verdicts written by hand", 36),
    row("files by llama.cpp", "llama.cpp", 5),
    row("decoded blocks", "ggml, gguf-py", 24),
    row("encoded blocks", "ggml", 18),
    row("mixes of types", "llama.cpp", 0),
    row("quantized llama", "llama-quantize", 54),
    row("quantized mixtral", "llama-quantize", 0),
    row("quantized wp4m", "llama-quantize", 0),
    row("importance matrices", "llama-imatrix", 0),
    row("tokenizer.json", "tokenizers", 505),
    row("random text", "tokenizers", 1500),
    row("tokenizers of tiny models", "tokenizers", 100),
    row("vocabularies", "tokenizers", 0),
    row("mixed text", "llama.cpp", 0),
    row("decoded text", "the text itself", 0),
    row("chat templates", "transformers", 84),
    row("trust of control tokens", "marks in the templates", 399),
    row("tool calls", "published templates", 0),
    row("JSON schemas, instances", "JSON Schema Test Suite", 0),
    row("JSON schemas, answers", "jsonschema", 0),
    row("logits, naive backend", "transformers", 19),
    row("logits, CPU", "transformers", 19),
    row("logits, simulated GPU", "transformers", 8),
    row("logits, Hugging Face folders", "transformers", 11),
    row("logits of folders, simulated GPU", "transformers", 0),
    row("MTP layers", "no reference: plain loops", 0),
    row(
        "MTP layers, in files of their own",
        "the layer in its model's file",
        0,
    ),
    row("MTP layers, latent attention", "no reference: plain loops", 0),
    row(
        "MTP layers, in folders",
        "no reference: files converted from them",
        0,
    ),
    row(
        "models without MTP layers",
        "no reference: files that leave them out",
        0,
    ),
    row("images of gemma3, CPU", "transformers", 7),
    row("images of gemma3, naive backend", "transformers", 7),
    row("images of gemma3, simulated GPU", "transformers", 7),
    row("images of qwen2vl, CPU", "transformers", 7),
    row("images of qwen2vl, naive backend", "transformers", 7),
    row("images of qwen2vl, simulated GPU", "transformers", 7),
    row("images of qwen2.5vl, CPU", "transformers", 7),
    row("images of qwen2.5vl, naive backend", "transformers", 7),
    row("images of qwen2.5vl, simulated GPU", "transformers", 7),
    row("images of qwen3vl, CPU", "transformers", 7),
    row("images of qwen3vl, naive backend", "transformers", 7),
    row("images of qwen3vl, simulated GPU", "transformers", 7),
    row("images of qwen3vlmoe, CPU", "transformers", 7),
    row("images of qwen3vlmoe, naive backend", "transformers", 7),
    row("images of qwen3vlmoe, simulated GPU", "transformers", 7),
    row(
        "damaged encoders of the Qwen families",
        "no reference: refused or loaded",
        1,
    ),
    row("refused rows of images", "no reference: one line each", 1),
    row("damaged image encoders", "no reference: none of them panics", 1),
    row("resized images", "Pillow", 12),
    row("images by the library", "transformers", 40),
    row("images by the program", "transformers", 20),
    row("image encoders of folders", "llama.cpp's converter", 20),
    row("encoders made of folders by the program", "transformers", 8),
    row("adapters, CPU", "transformers", 7),
    row("adapters, naive backend", "transformers", 7),
    row(
        "adapters in both forms",
        "no reference: files by PEFT and llama.cpp",
        1,
    ),
    row(
        "adapters of delta nets",
        "no reference: refused in another order",
        0,
    ),
    row("adapters with factors of rows", "the folder's configuration", 0),
    row("damaged adapters", "no reference: none of them panics", 1),
    row(
        "adapters of other models",
        "no reference: refused by what differs",
        1,
    ),
    row(
        "adapters of another architecture",
        "no reference: a file by llama.cpp",
        0,
    ),
    row("FP8 folders", "the same numbers in BF16", 1),
    row("converted folders", "llama.cpp's converter", 11),
    row("presets of converted folders", "llama-quantize", 0),
    row("presets of loaded folders", "presets of converted folders", 2),
    row("folders that are not converted", "no reference: one line each", 0),
    row(
        "folders that files can say",
        "no reference: the file's own header",
        2,
    ),
    row(
        "folders converted with importance",
        "the same by way of `quantize`",
        3,
    ),
    row("variants of folders", "no reference: the folder itself", 0),
    row(
        "random variants of folders",
        "no reference: the folder itself",
        16,
    ),
    row("turned choices between experts", "no reference: plain loops", 0),
    row("trained model stories260K", "numpy in float64", 0),
    row("trained model wp4m", "numpy in float64", 0),
    row("demo model, F16", "transformers", 0),
    row("demo model, Q8_0", "llama.cpp", 0),
    row("demo model, Q8_0, naive", "llama.cpp", 0),
    row("near-ties of the demo model", "llama.cpp", 0),
    row("rounding of the f16 cache", "no reference: plain loops", 0),
    row("perplexity", "llama.cpp", 0),
    row("perplexity of the demo model", "llama.cpp", 0),
    row("vectors of encoders", "no reference: files by llama.cpp", 5),
    row("importance for encoders", "no reference: files by llama.cpp", 1),
    row("errors about folders", "names by transformers", 4),
    row("the program's token ids", "transformers", 0),
    row("the program's ids of text", "llama.cpp", 0),
    row("inspect of a vocabulary", "no reference: a file by llama.cpp", 0),
    row(
        "commands on a folder",
        "no reference: a folder by transformers",
        6,
    ),
    row(
        "folders quantized while they load",
        "the quantized file of the same model",
        2,
    ),
    row(
        "experts on a GPU",
        "the CPU: greedy text of files by llama.cpp",
        0,
    ),
    row(
        "experts on a GPU and the CPU",
        "the CPU: greedy text of files by llama.cpp",
        0,
    ),
    row(
        "models on several GPUs",
        "the CPU: greedy text of files by llama.cpp",
        0,
    ),
    row(
        "recurrent layers on a GPU",
        "the CPU: greedy text of files by llama.cpp",
        0,
    ),
];

/// The comparisons of one test; writes their count when it is dropped.
#[derive(Debug)]
pub struct Comparisons {
    row: &'static str,
    full: Option<PathBuf>,
    count: Count,
}

/// The numbers of comparisons and skips of a test.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Count {
    /// Comparisons that were made.
    pub n_compared: usize,
    /// How often each reason for skipping came up.
    pub skipped: BTreeMap<String, usize>,
}

impl Comparisons {
    /// Begins the comparisons of a row of `ROWS`, which no other test has.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn of(row: &'static str) -> Self {
        assert!(
            ROWS.iter().any(|known| known.name == row),
            "`{row}` has no row in the table of comparisons"
        );
        Self {
            row,
            full: full_set(),
            count: Count::default(),
        }
    }

    /// Begins the comparisons of a row with the core set alone, whatever `TOKENMILL_TEST_DATA` names.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn of_core_set(row: &'static str) -> Self {
        let mut comparisons = Self::of(row);
        comparisons.full = None;
        comparisons
    }

    /// Returns the counts so far.
    pub fn count(&self) -> &Count {
        &self.count
    }

    /// Finds a file or folder of the reference data, in the full set or in the core set; counts a skip if it is in neither.
    pub fn find(&mut self, path: &str) -> Option<PathBuf> {
        let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let found = (self.full.iter().map(|full| full.join(path)))
            .chain([core.join(path)])
            .find(|path| path.exists());
        if found.is_none() {
            let reason = match &self.full {
                None => "not in the core set, and TOKENMILL_TEST_DATA is not set",
                Some(_) => "not in the folder that TOKENMILL_TEST_DATA names",
            };
            self.skip(reason);
        }
        found
    }

    /// Lists the folders of tiny networks with reference logits, in the order of their names.
    pub fn networks(&mut self) -> Vec<PathBuf> {
        let mut folders: Vec<_> = self.find("parity").into_iter().collect();
        if self.full.is_some() {
            folders.extend(self.find("parity2"));
        }
        // Networks that are in neither set are only in the repository.
        folders.extend(self.find("networks"));
        let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
        let mut networks: Vec<_> = (entries.map(|entry| entry.path()))
            .filter(|path| path.join("ref.json").is_file())
            .collect();
        networks.sort();
        if self.full.is_none() {
            self.skip("networks beyond the core set, since TOKENMILL_TEST_DATA is not set");
        }
        networks
    }

    /// Opens a network; counts a skip if its architecture, or a feature of it, is not supported.
    ///
    /// # Panics
    /// If it cannot be opened for another reason.
    pub fn open(&mut self, model: Result<Model, LoadError>) -> Option<Model> {
        match model {
            Ok(model) => Some(model),
            Err(error @ (LoadError::UnknownArchitecture { .. } | LoadError::UnsupportedFeature { .. })) => {
                let reason = match error {
                    LoadError::UnknownArchitecture { found, .. } => {
                        format!("architecture {found} is not supported")
                    }
                    other => other.to_string(),
                };
                self.skip(&reason);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Counts comparisons that were made.
    pub fn compared(&mut self, n: usize) {
        self.count.n_compared += n;
    }

    /// Counts a comparison that was not made.
    pub fn skip(&mut self, reason: &str) {
        *self.count.skipped.entry(reason.to_owned()).or_default() += 1;
    }
}

impl Drop for Comparisons {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for (reason, n) in &self.count.skipped {
            // Not `eprintln!`, which libtest hides.
            let _ = writeln!(stderr(), "{}: {n} skipped: {reason}", self.row);
        }
        let folder = counts_folder();
        let text = serde_json::to_string(&self.count).expect("a count has no keys but text");
        let written = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join(format!("{}.json", self.row)), text));
        if let Err(error) = written {
            let _ = writeln!(stderr(), "the count of `{}` is lost: {error}", self.row);
        }
    }
}

/// Returns the full set of reference data, for benchmarks; prints the skipped cases if there is none.
pub fn test_data(what: &str) -> Option<PathBuf> {
    let full = full_set();
    if full.is_none() {
        skip(
            what,
            "TOKENMILL_TEST_DATA does not name the folder of reference data",
        );
    }
    full
}

/// Prints to stderr that something other than a comparison is skipped, and why.
pub fn skip(what: &str, reason: &str) {
    // Not `eprintln!`, which libtest hides.
    let _ = writeln!(stderr(), "{what}: skipped, {reason}");
}

fn full_set() -> Option<PathBuf> {
    std::env::var_os("TOKENMILL_TEST_DATA").map(PathBuf::from)
}

/// Returns the folder in which tests leave their counts: next to the folder of the running test.
fn counts_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test.ancestors().nth(2).expect("tests are built in PROFILE/deps");
    profile.join("comparisons")
}

/// Takes the report: a table of all comparisons since the last report, whose counts it removes, and their faults.
pub fn take_report() -> (String, Vec<String>) {
    let folder = counts_folder();
    let counted: Vec<(&Row, Option<Count>)> = (ROWS.iter())
        .map(|row| {
            let path = folder.join(format!("{}.json", row.name));
            let count = fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice::<Count>(&text).ok());
            // A missing count usually means that a test did not run.
            let _ = fs::remove_file(path);
            (row, count)
        })
        .collect();
    (table(&counted), shortfalls(&counted))
}

/// Names the rows with fewer comparisons than the core set gives.
pub fn shortfalls(rows: &[(&Row, Option<Count>)]) -> Vec<String> {
    let short = rows.iter().filter_map(|(row, count)| {
        let n_compared = count.as_ref()?.n_compared;
        (n_compared < row.n_core).then(|| {
            format!(
                "`{}` made {n_compared} comparisons, and tests/data alone gives {}: a fixture is missing or not found",
                row.name, row.n_core
            )
        })
    });
    short.collect()
}

/// Writes the table of all rows, including those without a count, and the reasons for skips.
pub fn table(rows: &[(&Row, Option<Count>)]) -> String {
    let mut text = format!(
        "{:<32} {:<42} {:>8} {:>8}\n",
        "comparisons with other software", "", "compared", "skipped"
    );
    let (mut n_compared, mut n_skipped, mut n_silent) = (0, 0, 0);
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (Row { name, reference, .. }, count) in rows {
        let Some(count) = count else {
            n_silent += 1;
            let _ = writeln!(text, "{name:<32} {reference:<42} did not run");
            continue;
        };
        let n_row: usize = count.skipped.values().sum();
        n_compared += count.n_compared;
        n_skipped += n_row;
        for (reason, n) in &count.skipped {
            *reasons.entry(reason).or_default() += n;
        }
        let _ = writeln!(
            text,
            "{name:<32} {reference:<42} {:>8} {n_row:>8}",
            count.n_compared
        );
    }
    let _ = writeln!(text, "{:<75} {n_compared:>8} {n_skipped:>8}", "all");
    for (reason, n) in reasons {
        let _ = writeln!(text, "{n} skipped: {reason}");
    }
    if n_silent > 0 {
        let _ = writeln!(
            text,
            "{n_silent} of the tests did not run since the last report; `cargo test --workspace` runs all"
        );
    }
    text
}
