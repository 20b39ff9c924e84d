//! Reads SentencePiece's `tokenizer.model`: a protocol buffer with the pieces and the normalization.
//!
//! It parses untrusted bytes. Invariant: every length is compared with the remaining bytes, and unused fields are skipped.
//!
//! Source: SentencePiece, `sentencepiece_model.proto`, for the numbers of the fields.

use crate::TokenizerError;

use super::kind;

/// A model.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Model {
    pub(super) pieces: Vec<Piece>,
    /// Whether pieces are chosen by their probabilities, not merged.
    pub(super) is_unigram: bool,
    /// Whether a text gets a space before it.
    pub(super) adds_space: bool,
    /// Whether runs of spaces become one.
    pub(super) removes_spaces: bool,
    /// The table of the normalizer.
    pub(super) charsmap: Vec<u8>,
}

/// A piece of text.
#[derive(Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: i32,
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
}

const BAD: TokenizerError = TokenizerError::SentencePiece {
    reason: "its bytes are not a SentencePiece model",
};

/// Reads a model.
pub(super) fn parse(bytes: &[u8]) -> Result<Model, TokenizerError> {
    let mut model = Model {
        is_unigram: true,
        adds_space: true,
        removes_spaces: true,
        ..Model::default()
    };
    fields(bytes, |number, field| match (number, field) {
        (1, Field::Bytes(piece)) => {
            model.pieces.push(parse_piece(piece)?);
            Ok(())
        }
        // The settings of its training.
        (2, Field::Bytes(trainer)) => fields(trainer, |number, field| {
            if let (3, Field::Number(kind)) = (number, field) {
                match kind {
                    1 => model.is_unigram = true,
                    2 => model.is_unigram = false,
                    _ => {
                        return Err(TokenizerError::SentencePiece {
                            reason: "its pieces are words or characters, not subwords",
                        });
                    }
                }
            }
            Ok(())
        }),
        (3, Field::Bytes(normalizer)) => fields(normalizer, |number, field| {
            match (number, field) {
                (2, Field::Bytes(charsmap)) => model.charsmap = charsmap.to_vec(),
                (3, Field::Number(flag)) => model.adds_space = flag != 0,
                (4, Field::Number(flag)) => model.removes_spaces = flag != 0,
                _ => {}
            }
            Ok(())
        }),
        _ => Ok(()),
    })?;
    if model.pieces.is_empty() {
        return Err(TokenizerError::EmptyVocabulary);
    }
    Ok(model)
}

fn parse_piece(bytes: &[u8]) -> Result<Piece, TokenizerError> {
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: kind::NORMAL,
    };
    fields(bytes, |number, field| {
        match (number, field) {
            (1, Field::Bytes(text)) => {
                std::str::from_utf8(text)
                    .map_err(|_| BAD)?
                    .clone_into(&mut piece.text);
            }
            (2, Field::Fixed32(score)) => piece.score = f32::from_le_bytes(score),
            (3, Field::Number(kind)) => {
                // The numbers are those of GGUF files.
                piece.kind = i32::try_from(kind)
                    .ok()
                    .filter(|kind| (1..=6).contains(kind))
                    .ok_or(BAD)?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(piece)
}

/// Calls `read` with each field of a message.
fn fields(
    mut bytes: &[u8],
    mut read: impl FnMut(u64, Field<'_>) -> Result<(), TokenizerError>,
) -> Result<(), TokenizerError> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => {
                take(&mut bytes, 8)?;
                continue;
            }
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).map_err(|_| BAD)?;
                Field::Bytes(take(&mut bytes, len)?)
            }
            5 => {
                let taken = take(&mut bytes, 4)?;
                Field::Fixed32([taken[0], taken[1], taken[2], taken[3]])
            }
            _ => return Err(BAD),
        };
        read(key >> 3, field)?;
    }
    Ok(())
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], TokenizerError> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or(BAD)?;
    *bytes = rest;
    Ok(taken)
}

/// Reads a number in groups of seven bits, the lowest first.
fn varint(bytes: &mut &[u8]) -> Result<u64, TokenizerError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte] = *take(bytes, 1)? else { return Err(BAD) };
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(BAD)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn sample() -> Vec<u8> {
        let piece = |text: &str, score: f32, kind: u8| {
            let score = score.to_le_bytes();
            let bytes = [
                field(1, text.as_bytes()),
                vec![2 << 3 | 5],
                score.to_vec(),
                vec![3 << 3, kind],
            ];
            field(1, &bytes.concat())
        };
        [
            piece("<unk>", 0.0, 2),
            piece("\u{2581}a", -1.5, 1),
            // BPE; no space is put before a text.
            field(2, &[3 << 3, 2]),
            field(3, &[3 << 3, 0]),
            // An unused number of 64 bits.
            vec![9 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat()
    }

    #[test]
    fn pieces_and_settings_are_read() {
        let model = parse(&sample()).unwrap();
        assert!(!model.is_unigram && !model.adds_space && model.removes_spaces);
        let expected = Piece {
            text: "\u{2581}a".to_owned(),
            score: -1.5,
            kind: 1,
        };
        assert_eq!(model.pieces[1], expected);
        assert_eq!(model.pieces[0].kind, 2);
    }

    #[test]
    fn what_is_no_model_is_refused() {
        for bytes in [&b""[..], b"\x0a\xff", b"{}", &sample()[..20]] {
            parse(bytes).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn damaged_files_are_errors_or_models(flips in prop::collection::vec((0..64_usize, any::<u8>()), 1..4)) {
            let mut bytes = sample();
            for (at, byte) in flips {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            // Either way, without a panic.
            let _ = parse(&bytes);
        }
    }
}
