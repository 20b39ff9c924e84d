//! Mutations of program text that keep most of its structure, for tests and fuzz targets alike.
//!
//! It needs no other crate. Invariant: only `choose` decides, so a case can be run again; it is called with the number of
//! choices, at least 1, and returns one below it. The file names nothing of this crate, so that fuzz targets may include it by
//! path.

/// Numbers at which sizes, signs and precisions end.
const EDGES: [&str; 10] = [
    "0",
    "-1",
    "1",
    "31",
    "65536",
    "2147483648",
    "4294967296",
    "18446744073709551616",
    "1e308",
    "0f7FC00000",
];

/// Changes one place of a text. `fragments` are words of its language.
pub fn mutate_text(text: &mut String, fragments: &[&str], choose: &mut dyn FnMut(usize) -> usize) {
    let mut boundary = |text: &str| {
        let at = choose(text.len() + 1);
        (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
    };
    let (first, second) = (boundary(text), boundary(text));
    let range = first.min(second)..first.max(second);
    // Most changes are small ones.
    let near_end = text[range.start..]
        .char_indices()
        .nth(choose(24))
        .map_or(text.len(), |(n, _)| range.start + n);
    let range = if choose(4) == 0 {
        range
    } else {
        range.start..near_end
    };
    match choose(5) {
        0 => drop(text.drain(range)),
        1 => {
            let copy = text[range].to_owned();
            text.insert_str(first, &copy);
        }
        2 if !fragments.is_empty() => text.replace_range(range, fragments[choose(fragments.len())]),
        3 => text.replace_range(range, EDGES[choose(EDGES.len())]),
        _ if !fragments.is_empty() => text.insert_str(first, fragments[choose(fragments.len())]),
        _ => text.truncate(first),
    }
}

/// Makes choices from the bytes of a fuzzer's input; 0 once they are used up.
pub fn choices(bytes: &[u8]) -> impl FnMut(usize) -> usize + '_ {
    let mut bytes = bytes.iter();
    move |n| {
        let mut next = || usize::from(*bytes.next().unwrap_or(&0));
        let number = if n > 256 { next() << 8 | next() } else { next() };
        if n > 1 << 16 {
            (number << 8 | next()) % n
        } else {
            number % n
        }
    }
}
