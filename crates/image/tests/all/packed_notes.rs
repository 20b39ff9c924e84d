//! PNG files without their compressed notes.

use std::borrow::Cow;

use crate::png_parts::{png_size, without_packed_notes};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

fn chunk(name: [u8; 4], data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [&length[..], &name, data, &[0; 4]].concat()
}

#[test]
fn only_packed_notes_are_left_out() {
    let parts = [
        SIGNATURE.to_vec(),
        chunk(*b"IHDR", &[0, 0, 0, 57, 0, 0, 0, 40, 8, 2, 0, 0, 0]),
        chunk(*b"iCCP", &[1; 9]),
        chunk(*b"eXIf", b"e"),
        chunk(*b"zTXt", b""),
        chunk(*b"IDAT", b"iCCP"),
        chunk(*b"iTXt", b"t"),
        chunk(*b"IEND", b""),
        b"behind".to_vec(),
    ];
    let file = parts.concat();
    let expected = [0, 1, 3, 5, 7, 8].map(|idx| parts[idx].clone()).concat();
    assert_eq!(without_packed_notes(&file), expected);
    assert_eq!(png_size(&file), Some([57, 40]));
    assert!(matches!(without_packed_notes(&expected), Cow::Borrowed(_)));
    // Wherever the file is cut, only whole chunks are removed.
    for n_bytes in 0..file.len() {
        let cut = &file[..n_bytes];
        assert!(without_packed_notes(cut).len() <= cut.len());
    }
    let endless = [SIGNATURE, &[0xff; 4], b"iCCP"].concat();
    assert_eq!(without_packed_notes(&endless), endless.as_slice());
    assert_eq!(png_size(b"GIF89a"), None);
}
