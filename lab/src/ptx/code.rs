//! [`Code`] reads the machine code of a module's kernels from the assembler's output.
//!
//! 64-bit ELF has a code section for each kernel. Invariant: other files, and truncated files, give `None`.

use std::collections::BTreeMap;

/// Prefix of a code section's name.
const TEXT: &str = ".text.";
/// First bytes of a file: ELF, 64 bits, little-endian.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";

/// Holds the code of each kernel, by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Code<'a> {
    pub(super) kernels: BTreeMap<&'a str, &'a [u8]>,
}

impl<'a> Code<'a> {
    /// Reads a file.
    pub(super) fn read(file: &'a [u8]) -> Option<Self> {
        file.starts_with(MAGIC).then_some(())?;
        let number = |at: usize, len: usize| -> Option<usize> {
            let bytes = file.get(at..at.checked_add(len)?)?;
            let value = (bytes.iter().rev()).fold(0u64, |value, &byte| (value << 8) | u64::from(byte));
            usize::try_from(value).ok()
        };
        // The section table: its offset, the size and number of its records, and the index of the section with the names.
        let (table, record, n_sections) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
        let section = |index: usize| -> Option<(usize, &'a [u8])> {
            let at = table.checked_add(index.checked_mul(record)?)?;
            file.get(at..at.checked_add(record)?)?;
            let (name, offset, len) = (number(at, 4)?, number(at + 24, 8)?, number(at + 32, 8)?);
            // A section that only reserves memory has no bytes in the file, whatever its length.
            let bytes = file.get(offset..offset.checked_add(len)?).unwrap_or_default();
            Some((name, bytes))
        };
        let (_, names) = section(number(0x3e, 2)?)?;
        let mut kernels = BTreeMap::new();
        for index in 0..n_sections {
            let (name, bytes) = section(index)?;
            let name = names.get(name..)?.split(|&byte| byte == 0).next()?;
            if let Some(kernel) = std::str::from_utf8(name).ok()?.strip_prefix(TEXT) {
                kernels.insert(kernel, bytes);
            }
        }
        Some(Self { kernels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a file of two sections: names, and code of one kernel.
    fn file() -> Vec<u8> {
        let names = b"\0.names\0.text.norm\0";
        let code = [1u8, 2, 3, 4];
        let mut file = MAGIC.to_vec();
        file.resize(0x40, 0);
        let names_at = file.len();
        file.extend(names);
        let code_at = file.len();
        file.extend(code);
        let table = file.len();
        for (name, at, len) in [(1u32, names_at, names.len()), (8, code_at, code.len())] {
            let mut record = [0u8; 64];
            record[..4].copy_from_slice(&name.to_le_bytes());
            record[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            record[32..40].copy_from_slice(&(len as u64).to_le_bytes());
            file.extend(record);
        }
        file[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        file[0x3a] = 64;
        file[0x3c] = 2;
        file
    }

    #[test]
    fn the_code_of_a_kernel_is_its_section() {
        let file = file();
        let code = Code::read(&file).unwrap();
        assert_eq!(code.kernels, BTreeMap::from([("norm", &[1u8, 2, 3, 4][..])]));
    }

    #[test]
    fn a_file_that_is_cut_has_no_code() {
        let file = file();
        for end in 0..file.len() {
            assert_eq!(Code::read(&file[..end]), None, "{end}");
        }
        assert_eq!(Code::read(b".version 7.4"), None);
    }
}
