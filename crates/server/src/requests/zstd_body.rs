//! [`decompress`]: the bytes of a body that was sent with `Content-Encoding: zstd`.
//!
//! Clients compress long bodies without asking. Invariant: decoding takes no more memory than twice the limit of its result and a block,
//! whatever the frames of a body announce.

use axum::http::{HeaderMap, header};
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

use crate::ApiError;

/// Most frames of a body. A decoder's tables are made for each, also where it has no data.
const MAX_FRAMES: usize = 256;

/// The bit of a frame's descriptor that says that its data is one segment. Source: RFC 8878, section 3.1.1.1.1.
const ONE_SEGMENT: u8 = 1 << 5;

/// Why a body is not decompressed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refused {
    /// Its data is larger than the limit.
    #[error("the data is larger than the limit")]
    TooLarge,
    /// It refers back further than the limit.
    #[error(
        "its zstd frame has a window of {found_bytes} bytes, and the limit is {maximum_bytes}; compress it at a lower level, or \
         say its size"
    )]
    Window { found_bytes: u64, maximum_bytes: u64 },
    /// It has too many frames.
    #[error("it has more than {} zstd frames", MAX_FRAMES)]
    Frames,
    /// It ends too early, or is no zstd.
    #[error("its zstd data cannot be read: {reason}")]
    Broken { reason: String },
}

impl Refused {
    /// Makes the refusal of a body whose data may have `limit_bytes`.
    pub(crate) fn of_body(&self, limit_bytes: usize) -> ApiError {
        match self {
            Self::TooLarge => ApiError::BodyTooLarge { limit_bytes },
            refused => ApiError::MalformedJson {
                reason: refused.to_string(),
            },
        }
    }
}

impl From<FrameDecoderError> for Refused {
    fn from(error: FrameDecoderError) -> Self {
        match error {
            FrameDecoderError::WindowSizeTooBig { requested, max } => Self::Window {
                found_bytes: requested,
                maximum_bytes: max,
            },
            error => Self::Broken {
                reason: error.to_string(),
            },
        }
    }
}

/// Returns whether a body is compressed by zstd.
///
/// # Errors
/// [`ApiError::CompressedBody`] for another encoding, and for several.
pub(crate) fn is_compressed(headers: &HeaderMap) -> Result<bool, ApiError> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let values: Vec<_> = values
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    let encoding = values.join(", ");
    let is = |name: &str| encoding.trim().eq_ignore_ascii_case(name);
    let is_zstd = is("zstd");
    if is_zstd || is("identity") || encoding.is_empty() {
        return Ok(is_zstd);
    }
    Err(ApiError::CompressedBody { encoding })
}

fn broken(reason: &str) -> Refused {
    Refused::Broken {
        reason: reason.to_owned(),
    }
}

/// Decompresses frames of zstd, one after the other, to `limit_bytes` at most.
///
/// # Errors
/// Data that is no zstd or not whole, and data, frames or windows beyond the limits.
pub(crate) fn decompress(compressed: &[u8], limit_bytes: usize) -> Result<Vec<u8>, Refused> {
    let mut rest = compressed;
    let mut whole = Vec::new();
    if rest.is_empty() {
        return Err(broken("it is empty"));
    }
    for _ in 0..MAX_FRAMES {
        if rest.is_empty() {
            return Ok(whole);
        }
        let is_of_one_segment = rest
            .get(4)
            .is_some_and(|descriptor| descriptor & ONE_SEGMENT != 0);
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(limit_bytes as u64);
        match decoder.init(&mut rest) {
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let skipped = rest.get(length as usize..);
                rest = skipped.ok_or_else(|| broken("it ends within a frame"))?;
                continue;
            }
            // Its window is its data.
            Err(FrameDecoderError::WindowSizeTooBig { .. }) if is_of_one_segment => {
                return Err(Refused::TooLarge);
            }
            initialized => initialized?,
        }
        let before = whole.len();
        let told = decoder.content_size();
        if told > (limit_bytes - before) as u64 {
            return Err(Refused::TooLarge);
        }
        while !decoder.is_finished() {
            decoder.decode_blocks(&mut rest, BlockDecodingStrategy::UptoBlocks(1))?;
            (decoder.collect_to_writer(&mut whole)).map_err(|error| broken(&error.to_string()))?;
            if whole.len() > limit_bytes {
                return Err(Refused::TooLarge);
            }
        }
        if told > 0 && told != (whole.len() - before) as u64 {
            return Err(broken("it has another size than it says"));
        }
    }
    if rest.is_empty() {
        Ok(whole)
    } else {
        Err(Refused::Frames)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    const LIMIT: usize = 1 << 20;

    /// Data in a frame of one segment, as it is.
    fn stored(data: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80 | ONE_SEGMENT];
        frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
        let header = ((data.len() as u32) << 3) | 1;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(data);
        frame
    }

    fn compressed(data: &[u8]) -> Vec<u8> {
        compress_to_vec(data, CompressionLevel::Fastest)
    }

    /// A frame of `n_blocks` with a window of 1 KiB, each of which repeats a byte as many times and takes four bytes.
    fn bomb(n_blocks: usize) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0];
        for idx in 0..n_blocks {
            let header = (1_u32 << 13) | (1 << 1) | u32::from(idx + 1 == n_blocks);
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.push(b' ');
        }
        frame
    }

    #[test]
    fn frames_become_one_text() {
        let text = "Once upon a time there was a little cat. ".repeat(200);
        let mut body = compressed(text.as_bytes());
        assert_eq!(decompress(&body, LIMIT).unwrap(), text.as_bytes());
        // A frame to skip, and another.
        body.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        body.extend_from_slice(&compressed(b"The end."));
        assert_eq!(
            decompress(&body, LIMIT).unwrap(),
            format!("{text}The end.").as_bytes()
        );
        assert_eq!(decompress(&stored(b"as it is"), 8).unwrap(), b"as it is");
        assert_eq!(decompress(&stored(b"as it is"), 7), Err(Refused::TooLarge));
        let mut other = stored(b"as it is");
        other[5] += 1;
        assert!(matches!(decompress(&other, LIMIT), Err(Refused::Broken { .. })));
        assert_eq!(decompress(&bomb(3), LIMIT).unwrap(), vec![b' '; 3 << 10]);
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        assert_eq!(decompress(&bomb(1024), LIMIT).unwrap(), vec![b' '; LIMIT]);
        assert_eq!(decompress(&bomb(1025), LIMIT), Err(Refused::TooLarge));
        // A gibibyte of data.
        assert_eq!(decompress(&bomb(1 << 20), LIMIT), Err(Refused::TooLarge));
        // A frame that says its size, of one segment: 2^31 bytes.
        let told = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x80];
        assert_eq!(decompress(&told, LIMIT), Err(Refused::TooLarge));
        // A window of 2^41 bytes.
        let wide = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xf8, 1, 0, 0];
        assert!(matches!(
            decompress(&wide, LIMIT),
            Err(Refused::Window {
                maximum_bytes: 1_048_576,
                ..
            })
        ));
        let empty = [0x28, 0xb5, 0x2f, 0xfd, 0, 0, 1, 0, 0];
        assert_eq!(decompress(&empty.repeat(MAX_FRAMES), LIMIT), Ok(Vec::new()));
        assert_eq!(
            decompress(&empty.repeat(MAX_FRAMES + 1), LIMIT),
            Err(Refused::Frames)
        );
    }

    #[test]
    fn a_body_that_is_not_whole_is_refused() {
        let body = compressed(&b"Once upon a time there was a little cat. ".repeat(50));
        for n in 0..body.len() {
            let refused = decompress(&body[..n], LIMIT);
            assert!(matches!(refused, Err(Refused::Broken { .. })), "{n}: {refused:?}");
        }
        for other in [
            &b"{\"state\": \"a\"}"[..],
            &[0x1f, 0x8b, 8, 0],
            &[0x50, 0x2a, 0x4d, 0x18, 9, 0, 0, 0, 1],
        ] {
            let refused = decompress(other, LIMIT);
            assert!(matches!(refused, Err(Refused::Broken { .. })), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn damaged_data_is_refused_or_decoded_within_the_limit(
            at in 0_usize..400,
            byte: u8,
            words in proptest::collection::vec("[a-d]{1,9}", 0..200),
        ) {
            let mut body = compressed(words.join(" ").as_bytes());
            let at = at % body.len();
            body[at] = byte;
            if let Ok(whole) = decompress(&body, LIMIT) {
                prop_assert!(whole.len() <= LIMIT);
            }
        }
    }
}
