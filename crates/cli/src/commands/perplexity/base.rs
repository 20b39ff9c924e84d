//! The logits of a model on a text in a file, as llama.cpp's `--kl-divergence-base` writes and reads them.
//!
//! Invariant: one row is in memory at a time, and a file's counts are compared with its
//! length before any is used.
//!
//! The file: `_logits_`, then the context, the vocabulary and the count of chunks, the tokens of all chunks, and for each scored
//! position a scale, the smallest log-probability and a number of 16 bits for each token. Source: llama.cpp, `tools/perplexity`.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use tokenmill_convert::OutputFile;

use crate::failure::Failure;

const MAGIC: &[u8; 8] = b"_logits_";
/// Logits further below the greatest than this are all stored alike.
const MAX_DEPTH: f32 = 16.0;
/// Bytes before the tokens.
const HEADER_BYTES: u64 = 20;

/// The header of a file.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) n_ctx: usize,
    pub(super) n_vocab: usize,
    /// The tokens of all chunks.
    pub(super) tokens: Vec<u32>,
}

impl Header {
    fn row_bytes(&self) -> usize {
        // Rows have an even count of numbers, and two floats before them.
        8 + 2 * self.n_vocab.next_multiple_of(2)
    }

    /// Returns the bytes of a file of `n_chunks` chunks.
    fn file_bytes(&self, n_chunks: u64) -> u64 {
        let n_rows = n_chunks.saturating_mul(n_scored(self.n_ctx as u64));
        HEADER_BYTES
            .saturating_add(4 * self.tokens.len() as u64)
            .saturating_add(n_rows.saturating_mul(self.row_bytes() as u64))
    }
}

/// Scored positions of a chunk: those of its second half that a next token is known of.
fn n_scored(n_ctx: u64) -> u64 {
    n_ctx.saturating_sub(1 + n_ctx / 2)
}

/// Writes a file.
pub(super) struct Writer {
    out: BufWriter<OutputFile>,
    path: PathBuf,
    header: Header,
    row: Vec<u8>,
}

impl Writer {
    pub(super) fn create(path: &Path, header: Header) -> Result<Self, Failure> {
        let unwritable = |error| Failure::unwritable(path, error);
        let file = OutputFile::create(path)?;
        let n_chunks = header.tokens.len() / header.n_ctx;
        file.check_room(header.file_bytes(n_chunks as u64))?;
        let mut out = BufWriter::new(file);
        let mut bytes = MAGIC.to_vec();
        for number in [header.n_ctx, header.n_vocab, n_chunks] {
            bytes.extend((number as u32).to_le_bytes());
        }
        bytes.extend(header.tokens.iter().flat_map(|token| token.to_le_bytes()));
        out.write_all(&bytes).map_err(unwritable)?;
        Ok(Self {
            out,
            path: path.to_owned(),
            row: Vec::with_capacity(header.row_bytes()),
            header,
        })
    }

    /// Adds the logits of the next scored position.
    pub(super) fn push(&mut self, logits: &[f32]) -> Result<(), Failure> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = logits
            .iter()
            .copied()
            .fold(f32::INFINITY, f32::min)
            .max(max - MAX_DEPTH);
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
        let scale = (max - min) / 65535.0;
        let min_log_prob = min - max - sum.ln() as f32;
        self.row.clear();
        self.row.extend(scale.to_le_bytes());
        self.row.extend(min_log_prob.to_le_bytes());
        for &logit in logits {
            let number = if scale > 0.0 {
                ((logit.max(min) - min) / scale).round() as u16
            } else {
                0
            };
            self.row.extend(number.to_le_bytes());
        }
        self.row.resize(self.header.row_bytes(), 0);
        self.out
            .write_all(&self.row)
            .map_err(|error| Failure::unwritable(&self.path, error))
    }

    /// Gives the file its name; a writer that is dropped leaves none.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let out =
            (self.out.into_inner()).map_err(|error| Failure::unwritable(&self.path, error.into_error()))?;
        Ok(out.finish()?)
    }
}

/// Reads a file, row after row.
pub(super) struct Reader {
    input: BufReader<File>,
    path: PathBuf,
    pub(super) header: Header,
    row: Vec<u8>,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let unreadable = |error| Failure::unreadable(path, &error);
        let no_base = |what: &str| {
            Failure::input(format!("{}: {what}", path.display()))
                .hint("`tokenmill perplexity MODEL TEXT --save-logits FILE` writes such a file, and so does llama.cpp's perplexity")
        };
        let file = File::open(path).map_err(unreadable)?;
        let n_bytes = file.metadata().map_err(unreadable)?.len();
        let mut input = BufReader::new(file);
        let mut head = [0; HEADER_BYTES as usize];
        if n_bytes < HEADER_BYTES {
            return Err(no_base("this is not a file of logits"));
        }
        input.read_exact(&mut head).map_err(unreadable)?;
        if !head.starts_with(MAGIC) {
            return Err(no_base("this is not a file of logits"));
        }
        let number = |at: usize| {
            u64::from(u32::from_le_bytes([
                head[at],
                head[at + 1],
                head[at + 2],
                head[at + 3],
            ]))
        };
        let (n_ctx, n_vocab, n_chunks) = (number(8), number(12), number(16));
        let n_tokens = n_ctx.saturating_mul(n_chunks);
        let n_rows = n_scored(n_ctx).saturating_mul(n_chunks);
        let row_bytes = 8 + 2 * n_vocab.next_multiple_of(2);
        let expected = HEADER_BYTES
            .saturating_add(n_tokens.saturating_mul(4))
            .saturating_add(n_rows.saturating_mul(row_bytes));
        if n_ctx < 4 || n_vocab == 0 || n_chunks == 0 || n_bytes < expected {
            return Err(no_base(&format!(
                "it has {n_bytes} bytes, but its counts require {expected}"
            )));
        }
        let mut bytes = vec![0; 4 * n_tokens as usize];
        input.read_exact(&mut bytes).map_err(unreadable)?;
        let tokens: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|token| u32::from_le_bytes([token[0], token[1], token[2], token[3]]))
            .collect();
        if let Some(token) = tokens.iter().find(|&&token| u64::from(token) >= n_vocab) {
            return Err(no_base(&format!(
                "token {token} is beyond its vocabulary of {n_vocab}"
            )));
        }
        Ok(Self {
            input,
            path: path.to_owned(),
            header: Header {
                n_ctx: n_ctx as usize,
                n_vocab: n_vocab as usize,
                tokens,
            },
            row: Vec::new(),
        })
    }

    /// The log-probabilities of the next scored position.
    pub(super) fn next_row(&mut self, log_probs: &mut Vec<f32>) -> Result<(), Failure> {
        self.row.resize(self.header.row_bytes(), 0);
        self.input
            .read_exact(&mut self.row)
            .map_err(|error| Failure::unreadable(&self.path, &error))?;
        let float = |at: usize| {
            f32::from_le_bytes([self.row[at], self.row[at + 1], self.row[at + 2], self.row[at + 3]])
        };
        let (scale, min_log_prob) = (float(0), float(4));
        log_probs.clear();
        let numbers = self.row[8..].chunks_exact(2).take(self.header.n_vocab);
        log_probs.extend(numbers.map(|number| {
            let number = u16::from_le_bytes([number[0], number[1]]);
            scale * f32::from(number) + min_log_prob
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_went_but_for_rounding() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        let header = Header {
            n_ctx: 4,
            n_vocab: 3,
            tokens: vec![0, 1, 2, 1],
        };
        let logits = [1.0_f32, -2.0, 4.0];
        let mut writer = Writer::create(&path, header).unwrap();
        writer.push(&logits).unwrap();
        let expected = writer.header.file_bytes(1);
        writer.finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), expected);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.header.tokens, [0, 1, 2, 1]);
        let mut row = Vec::new();
        reader.next_row(&mut row).unwrap();
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        for (found, logit) in row.iter().zip(logits) {
            assert!((found - (logit - sum.ln())).abs() < 1e-3, "{found}");
        }
        reader.next_row(&mut row).unwrap_err();
    }

    #[test]
    fn damaged_files_are_refused_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base");
        let mut bytes = MAGIC.to_vec();
        for number in [4_u32, 3, 1, 0, 1, 2, 1] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([0; 16]);
        std::fs::write(&path, &bytes).unwrap();
        Reader::open(&path).unwrap();
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                std::fs::write(&path, bytes).unwrap();
                // Whatever it says, without a panic.
                if let Ok(mut reader) = Reader::open(&path) {
                    let _ = reader.next_row(&mut Vec::new());
                }
            }
        }
        std::fs::write(&path, &bytes[..30]).unwrap();
        assert!(Reader::open(&path).is_err());
    }
}
