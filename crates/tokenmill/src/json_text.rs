//! [`readable_json`] repairs JSON from other programs for a strict parser.
//!
//! Requests, files and lines of a batch all come from elsewhere. Invariants: well-formed text does not
//! change; the length never grows.

use std::borrow::Cow;

/// A byte order mark, which editors on Windows write at the start of files.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes a byte order mark and replaces each lone surrogate by U+FFFD. JavaScript clients produce lone surrogates when they cut a text
/// inside an emoji.
pub fn readable_json(bytes: &[u8]) -> Cow<'_, [u8]> {
    let bytes = bytes.strip_prefix(MARK).unwrap_or(bytes);
    if next_half(bytes, 0).is_none() {
        return Cow::Borrowed(bytes);
    }
    let mut mended = bytes.to_vec();
    mend(&mut mended);
    Cow::Owned(mended)
}

/// Does the same as [`readable_json`], in place.
pub fn make_readable_json(bytes: &mut Vec<u8>) {
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    mend(bytes);
}

fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(half) = next_half(bytes, at) {
        at = half + 6;
        bytes[half + 2..at].copy_from_slice(b"fffd");
    }
}

/// Finds the next escape of a lone surrogate.
fn next_half(bytes: &[u8], from: usize) -> Option<usize> {
    let is_low = |unit: u16| (0xdc00..0xe000).contains(&unit);
    let mut at = from;
    loop {
        let escape = at + bytes.get(at..)?.iter().position(|&byte| byte == b'\\')?;
        match unit_at(bytes, escape) {
            // The next byte is escaped, even if it is a backslash.
            None => at = escape + 2,
            Some(unit) if is_low(unit) => return Some(escape),
            Some(unit) if (0xd800..0xdc00).contains(&unit) => {
                if !unit_at(bytes, escape + 6).is_some_and(is_low) {
                    return Some(escape);
                }
                at = escape + 12;
            }
            Some(_) => at = escape + 6,
        }
    }
}

/// Removes a byte order mark.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the UTF-16 unit of the escape at this place.
fn unit_at(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_pairs_are_replaced_and_all_else_stays() {
        let check = |json: &str, expected: &str| {
            let mended = readable_json(json.as_bytes());
            let read: String =
                serde_json::from_slice(&mended).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(read, expected, "{json}");
        };
        check(r#""a \ud83d b""#, "a \u{fffd} b");
        check(r#""\ude00""#, "\u{fffd}");
        check(r#""\ud83d\ude00""#, "😀");
        check(r#""\ud83d\ud83d\ude00\ude00""#, "\u{fffd}😀\u{fffd}");
        check(r#""\ud83d""#, "\u{fffd}");
        check(r#""\ud83d\n""#, "\u{fffd}\n");
        check(r#""\ud83d\\ude00""#, "\u{fffd}\\ude00");
        check(r#""\\ud83d""#, "\\ud83d");
        check(r#""\\\ud83d""#, "\\\u{fffd}");
        check("\u{feff}\"a\"", "a");
        let mut in_place = "\u{feff}\"\\ud83d\"".to_owned().into_bytes();
        make_readable_json(&mut in_place);
        assert_eq!(in_place, br#""\ufffd""#);
        assert!(matches!(readable_json(br#""\u00e9""#), Cow::Borrowed(_)));
        assert_eq!(
            &*readable_json(b"\"\\ud83"),
            b"\"\\ud83",
            "broken text stays broken"
        );
    }
}
