//! Pages of a [`KvStore`] as bytes, to keep them outside of the store.
//!
//! The order of a page's parts matters only here: first the keys of all layers, then their values, each head
//! by head. Invariant: a page read from one store and written to another of the same shapes and types is the
//! same page.

use super::{Half, KvStore};

impl KvStore {
    /// Returns the number of bytes of one page, over all layers.
    pub fn bytes_of_page(&self) -> usize {
        let halves = self.keys.iter().chain(&self.values);
        halves.map(|half| half.bytes.len() / self.n_pages.max(1)).sum()
    }

    /// Appends a page to `bytes`.
    ///
    /// # Panics
    /// If the page is outside the store.
    pub fn read_page(&self, page: u32, bytes: &mut Vec<u8>) {
        assert!((page as usize) < self.n_pages, "page {page} of {}", self.n_pages);
        for half in self.keys.iter().chain(&self.values) {
            for head in half.bytes.chunks_exact(half.head_stride()) {
                bytes.extend_from_slice(&head[page as usize * half.page_bytes..][..half.page_bytes]);
            }
        }
    }

    /// Writes a page that [`Self::read_page`] returned.
    ///
    /// # Panics
    /// If the page is outside the store, or `bytes` is not as long as a page.
    pub fn write_page(&mut self, page: u32, bytes: &[u8]) {
        assert!((page as usize) < self.n_pages, "page {page} of {}", self.n_pages);
        assert_eq!(bytes.len(), self.bytes_of_page(), "bytes of a page");
        let mut rest = bytes;
        for half in self.keys.iter_mut().chain(&mut self.values) {
            let (stride, page_bytes) = (half.head_stride(), half.page_bytes);
            for head in half.bytes.chunks_exact_mut(stride) {
                let (own, others) = rest.split_at(page_bytes);
                head[page as usize * page_bytes..][..page_bytes].copy_from_slice(own);
                rest = others;
            }
        }
    }
}

impl Half {
    /// Returns the number of bytes of a head's pages; at least 1, so that a half without bytes has no heads.
    fn head_stride(&self) -> usize {
        (self.n_pages * self.page_bytes).max(1)
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{KvLayerShape, KvType};

    use super::*;

    #[test]
    fn a_page_that_was_read_is_written_to_another_place() {
        let shapes = [(64, 32, false), (64, 64, true)].map(|(head_dim_k, head_dim_v, has_values_in_keys)| {
            KvLayerShape {
                n_kv_heads: 3,
                head_dim_k,
                head_dim_v,
                has_values_in_keys,
            }
        });
        for ty in KvType::ALL {
            let mut store = KvStore::new(&shapes, 4, ty, KvType::F16).unwrap();
            assert_eq!(
                store.bytes_of_page(),
                KvStore::page_bytes(&shapes, ty, KvType::F16)
            );
            let page: Vec<u8> = (0..store.bytes_of_page())
                .map(|at| (at * 7 % 251) as u8)
                .collect();
            store.write_page(2, &page);
            let read = |store: &KvStore, page| {
                let mut bytes = Vec::new();
                store.read_page(page, &mut bytes);
                bytes
            };
            assert_eq!(read(&store, 2), page);
            assert!(
                read(&store, 1)
                    .iter()
                    .chain(&read(&store, 3))
                    .all(|&byte| byte == 0)
            );
            // The copies within the store must give the same result.
            store.copy_page(2, 0);
            assert_eq!(read(&store, 0), page);
        }
    }
}
