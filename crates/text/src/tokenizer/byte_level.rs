//! GPT-2's printable stand-ins for bytes, in which byte-level vocabularies are written. Both readers decode
//! them at load; afterwards everything works on raw bytes.

use std::sync::LazyLock;

/// The byte of each stand-in, by code point; all of them are below 324.
static BYTE_OF: LazyLock<[Option<u8>; 324]> = LazyLock::new(|| {
    let mut byte_of = [None; 324];
    let mut next = 256;
    for byte in 0..=255u8 {
        let stands_for_itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if stands_for_itself {
            byte as usize
        } else {
            next += 1;
            next - 1
        };
        byte_of[code] = Some(byte);
    }
    byte_of
});

/// Returns the byte of a stand-in.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    BYTE_OF.get(character as usize).copied().flatten()
}

/// Returns the bytes of a text of stand-ins; `None` if a character is not one.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// Returns the byte of a token `<0xNN>`.
pub(crate) fn byte_of_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).expect("two hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_cover_every_byte_once() {
        let mut seen = [0; 256];
        for byte in BYTE_OF.iter().flatten() {
            seen[*byte as usize] += 1;
        }
        assert_eq!(seen, [1; 256]);
        assert_eq!(decode("Ġhi"), Some(b" hi".to_vec()));
        assert_eq!(decode("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(decode("日"), None);
    }

    #[test]
    fn byte_tokens_are_two_hexadecimal_digits() {
        assert_eq!(byte_of_token("<0x0A>"), Some(10));
        assert_eq!(byte_of_token("<0x+A>"), None);
        assert_eq!(byte_of_token("<0xABC>"), None);
    }
}
