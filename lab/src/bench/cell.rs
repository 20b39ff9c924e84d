//! [`Cell`]: one figure to measure, a kind of work on a model, and the list of all cells.
//!
//! Invariant: a cell's name has everything that decides its figure, so that records of two days can be compared.

use std::fmt;

/// A kind of work on a model of some shape and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// The preset of its shapes, as `lab synth` knows them.
    pub(super) preset: &'static str,
    /// The type of its weights.
    pub(super) recipe: &'static str,
    pub(super) work: Work,
    pub(super) kv: Kv,
}

/// The work of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Compute a prompt.
    Prefill { n_tokens: usize },
    /// Generate tokens one by one, after some context.
    Decode { n_tokens: usize, n_depth: usize },
    /// Generate in several sequences side by side.
    Batch { n_seqs: usize, n_tokens: usize },
    /// Start, load and compute one token.
    Load,
}

impl Work {
    pub(super) const fn prefill(n_tokens: usize) -> Self {
        Self::Prefill { n_tokens }
    }

    pub(super) const fn decode(n_tokens: usize, n_depth: usize) -> Self {
        Self::Decode { n_tokens, n_depth }
    }

    pub(super) const fn batch(n_seqs: usize, n_tokens: usize) -> Self {
        Self::Batch { n_seqs, n_tokens }
    }
}

/// Selects the type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kv {
    F16,
    Q8_0,
}

impl Kv {
    /// Returns its name on command lines.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Returns the bits of a value.
    pub(super) fn value_bits(self) -> f64 {
        match self {
            Self::F16 => 16.0,
            // 32 bytes and a half-precision scale.
            Self::Q8_0 => 8.5,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Prefill { n_tokens } => write!(f, "pp{n_tokens}"),
            Self::Decode { n_tokens, n_depth: 0 } => write!(f, "tg{n_tokens}"),
            Self::Decode { n_tokens, n_depth } => write!(f, "tg{n_tokens}@d{n_depth}"),
            Self::Batch { n_seqs, n_tokens } => write!(f, "tg{n_tokens}x{n_seqs}"),
            Self::Load => f.write_str("load"),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.preset, self.recipe, self.work)?;
        match self.kv {
            Kv::F16 => Ok(()),
            Kv::Q8_0 => f.write_str("/kv-q8_0"),
        }
    }
}

const SMALL: &str = "qwen2.5-0.5b";
const LARGE: &str = "llama-3.2-1b";

/// Networks with recurrent layers, with experts, and with windows, each in the type that most of its files have.
const OTHER_NETWORKS: [(&str, &str); 4] = [
    ("qwen3.5-2b", "Q4_K_M"),
    ("qwen3-30b-a3b-8l", "Q4_K_M"),
    ("gpt-oss-20b-6l", "MXFP4_MOE"),
    ("gemma-3-4b", "Q4_K_M"),
];

/// Returns all cells, in the order of the report.
pub(super) fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |preset, recipe, work, kv| {
        cells.push(Cell {
            preset,
            recipe,
            work,
            kv,
        });
    };
    for work in [Work::decode(128, 0), Work::prefill(512)] {
        for preset in [SMALL, LARGE] {
            for recipe in ["Q4_0", "Q4_K_M", "Q6_K", "Q8_0"] {
                add(preset, recipe, work, Kv::F16);
            }
        }
    }
    for n_depth in [2048, 4096] {
        for kv in [Kv::F16, Kv::Q8_0] {
            add(LARGE, "Q4_K_M", Work::decode(32, n_depth), kv);
        }
    }
    for n_seqs in [4, 8, 16] {
        add(LARGE, "Q4_K_M", Work::batch(n_seqs, 64), Kv::F16);
    }
    add(LARGE, "Q4_K_M", Work::Load, Kv::F16);
    for (preset, recipe) in OTHER_NETWORKS {
        for work in [Work::decode(128, 0), Work::prefill(512), Work::batch(8, 64)] {
            add(preset, recipe, work, Kv::F16);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_cells_have_one_name() {
        let names: BTreeSet<String> = all().iter().map(Cell::to_string).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.contains("llama-3.2-1b/Q4_K_M/tg32@d2048/kv-q8_0"));
        assert!(names.contains("qwen2.5-0.5b/Q8_0/pp512"));
        assert!(names.contains("gpt-oss-20b-6l/MXFP4_MOE/tg64x8"));
    }
}
