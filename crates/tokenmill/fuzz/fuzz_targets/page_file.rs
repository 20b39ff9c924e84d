//! Feeds bytes to the parser of sessions and of the files of prefix folders: as a file, and as what a right sum
//! covers.
//!
//! ```text
//! cd crates/tokenmill && mkdir -p fuzz/corpus/page_file
//! cargo +nightly fuzz run page_file -- -max_total_time=600 -max_len=4096
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill::sessions::PageFileHeader;

fuzz_target!(|bytes: &[u8]| {
    let _ = PageFileHeader::read(&mut &bytes[..], bytes.len() as u64);
    if let Ok(header) = PageFileHeader::parse(bytes) {
        let file = header
            .to_bytes()
            .expect("a header that was read is not too large");
        let read = PageFileHeader::read(&mut &file[..], file.len() as u64);
        assert_eq!(read.expect("what was written is read"), header);
    }
});
