//! [`KvStore`]: keys and values of every sequence, in pages of 16 tokens.
//!
//! The store does not know which sequence owns a page; a slot is `page * 16 + position % 16`. Invariant:
//! attention reads what was stored, after rounding to the store's type, so a result does not depend on
//! whether a key came from this step or from an earlier one.

mod bytes;

use half::f16;
use tokenmill_backend::{KvLayerShape, KvType, MAX_ROTATION, PAGE_TOKENS};
use tokenmill_cpu_kernels::rotate;
use tokenmill_quant::e4m3;

use crate::{CpuExecError, Host, zeroed};

/// The number of values that share a scale in [`KvType::Q8_0`] and [`KvType::Q4_0`].
const BLOCK: usize = 32;

/// The number of values in a page's block that are the low nibbles of its bytes in [`KvType::Q4_0`]; the
/// values after them are the high nibbles.
const Q4_HALF: usize = PAGE_TOKENS * BLOCK / 2;

/// The order of the numbers in a page; a page is 16 tokens of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageOrder {
    /// `[head_dim][16 tokens]`: one load has the same column of 16 keys, and scores are never summed across
    /// lanes.
    Keys,
    /// `[16 tokens][head_dim]`: one load has 16 columns of a value. Rows are padded to whole loads.
    Values,
    /// The order of [`Self::Values`], for rows that are keys and values.
    Rows,
}

/// The keys or values of one layer: `[n_kv_heads, n_pages]` pages, each in its [`PageOrder`]. A page of
/// [`KvType::Q8_0`] has, for each 32 columns, 16 scales and then the bytes; keys and values are in the
/// [order](PageOrder::byte_index) that byte products take. A page of [`KvType::Q4_0`] holds rotated rows in
/// the same way, with two numbers per byte, in the page's order.
#[derive(Debug)]
struct Half {
    ty: KvType,
    order: PageOrder,
    head_dim: usize,
    /// The number of columns of a head that are rotated together, if the type requires it.
    rotation: Option<usize>,
    page_bytes: usize,
    n_pages: usize,
    bytes: Vec<u8>,
}

/// Keys and values of all layers for `n_pages` pages.
#[derive(Debug)]
pub struct KvStore {
    shapes: Vec<KvLayerShape>,
    keys: Vec<Half>,
    /// The values; empty for a layer whose values are in its keys.
    values: Vec<Half>,
    n_pages: usize,
}

impl KvStore {
    /// Allocates `n_pages` pages for layers of these shapes. The system provides the memory as pages are
    /// first used.
    ///
    /// # Errors
    /// [`CpuExecError::KvHeadDim`] if a head is not a whole number of the type's blocks,
    /// [`CpuExecError::KvTooLarge`] if a size overflows, and [`CpuExecError::OutOfMemory`].
    pub fn new(
        shapes: &[KvLayerShape],
        n_pages: usize,
        key_ty: KvType,
        value_ty: KvType,
    ) -> Result<Self, CpuExecError> {
        let keys = |shape: &KvLayerShape| {
            let order = PageOrder::of_keys(shape);
            let rotation = shape.key_rotation();
            Half::new(
                key_ty,
                order,
                [shape.n_kv_heads, shape.head_dim_k],
                rotation,
                n_pages,
            )
        };
        let values = |shape: &KvLayerShape| {
            let head_dim = shape.own_value_dim();
            let (order, rotation) = (PageOrder::Values, shape.value_rotation());
            Half::new(value_ty, order, [shape.n_kv_heads, head_dim], rotation, n_pages)
        };
        Ok(Self {
            keys: shapes.iter().map(keys).collect::<Result<_, _>>()?,
            values: shapes.iter().map(values).collect::<Result<_, _>>()?,
            shapes: shapes.to_vec(),
            n_pages,
        })
    }

    /// Returns the number of bytes of one page of such a store, over all layers; the rows of values are
    /// padded to a multiple of 16 numbers.
    pub fn page_bytes(shapes: &[KvLayerShape], key_ty: KvType, value_ty: KvType) -> usize {
        let head_bytes = |shape: &KvLayerShape| {
            key_ty.head_bytes(PageOrder::of_keys(shape).padded(shape.head_dim_k))
                + value_ty.head_bytes(PageOrder::Values.padded(shape.own_value_dim()))
        };
        let bytes = |shape: &KvLayerShape| shape.n_kv_heads * head_bytes(shape);
        PAGE_TOKENS * shapes.iter().map(bytes).sum::<usize>()
    }

    /// Returns the number of pages in the store.
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Returns the shape of a layer.
    pub fn shape(&self, layer_idx: usize) -> KvLayerShape {
        self.shapes[layer_idx]
    }

    /// Returns the number of bytes that the store takes once every page is used.
    pub fn n_bytes(&self) -> usize {
        self.keys
            .iter()
            .chain(&self.values)
            .map(|half| half.bytes.len())
            .sum()
    }

    /// Stores the keys and values of a step's tokens: `keys`: `[n_tokens, n_kv_heads, head_dim_k]`, `values`:
    /// `[n_tokens, n_kv_heads, head_dim_v]`, `slots`: `[n_tokens]`.
    ///
    /// # Panics
    /// If the shapes contradict each other or a slot is outside the store.
    pub fn store(&mut self, host: &Host, layer_idx: usize, slots: &[u32], keys: &[f32], values: &[f32]) {
        self.keys[layer_idx].store(host, slots, keys);
        self.values[layer_idx].store(host, slots, values);
    }

    /// Stores the keys of a layer whose values are in its keys, as [`Self::store`] does.
    ///
    /// # Panics
    /// If the shapes contradict each other or a slot is outside the store.
    pub fn store_keys(&mut self, host: &Host, layer_idx: usize, slots: &[u32], keys: &[f32]) {
        assert!(
            self.shapes[layer_idx].has_values_in_keys,
            "values of layer {layer_idx}"
        );
        self.keys[layer_idx].store(host, slots, keys);
    }

    /// Copies page `from` to page `to`, in every layer.
    ///
    /// # Panics
    /// If a page is outside the store.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        for half in self.keys.iter_mut().chain(&mut self.values) {
            half.copy_page(from as usize, to as usize);
        }
    }

    /// Copies a page from another store of the same shapes and types, to move it between tiers.
    ///
    /// # Panics
    /// If a page is outside its store or the stores differ in shape or type.
    pub fn copy_page_from(&mut self, other: &Self, from: u32, to: u32) {
        assert_eq!(self.shapes, other.shapes, "shapes of two KV stores");
        let others = other.keys.iter().chain(&other.values);
        for (own, other) in self.keys.iter_mut().chain(&mut self.values).zip(others) {
            own.copy_page_from(other, from as usize, to as usize);
        }
    }

    /// Returns the bytes of a page of keys.
    pub(crate) fn key_page(&self, layer_idx: usize, head_idx: usize, page: u32) -> &[u8] {
        self.keys[layer_idx].page(head_idx, page)
    }

    /// Returns the bytes of a page of values, which may be the beginnings of its rows of keys.
    pub(crate) fn value_page(&self, layer_idx: usize, head_idx: usize, page: u32) -> &[u8] {
        self.values_of(layer_idx).page(head_idx, page)
    }

    /// Returns the types of a layer's keys and values.
    pub(crate) fn types(&self, layer_idx: usize) -> (KvType, KvType) {
        (self.keys[layer_idx].ty, self.values_of(layer_idx).ty)
    }

    /// Returns the half that holds a layer's values.
    fn values_of(&self, layer_idx: usize) -> &Half {
        if self.shapes[layer_idx].has_values_in_keys {
            &self.keys[layer_idx]
        } else {
            &self.values[layer_idx]
        }
    }
}

impl PageOrder {
    /// Returns the order of a layer's keys.
    fn of_keys(shape: &KvLayerShape) -> Self {
        if shape.has_values_in_keys {
            Self::Rows
        } else {
            Self::Keys
        }
    }

    /// Returns the number of columns that a token's row takes in a page.
    fn padded(self, head_dim: usize) -> usize {
        match self {
            Self::Keys => head_dim,
            Self::Values | Self::Rows => padded_dim(head_dim),
        }
    }

    /// Returns the index of the number of column `col` and token `lane` in a page of rows of length `dim`.
    fn index(self, dim: usize, lane: usize, col: usize) -> usize {
        match self {
            Self::Keys => col * PAGE_TOKENS + lane,
            Self::Values | Self::Rows => lane * dim + col,
        }
    }

    /// Returns the index of the byte of column `col` and token `lane` among the bytes of 32 columns in
    /// [`KvType::Q8_0`]. The bytes that a product sums are adjacent: four columns of a key or two tokens of
    /// a value.
    fn byte_index(self, lane: usize, col: usize) -> usize {
        match self {
            Self::Keys => col / 4 * 4 * PAGE_TOKENS + 4 * lane + col % 4,
            Self::Values => lane / 2 * 2 * BLOCK + 2 * col + lane % 2,
            Self::Rows => lane * BLOCK + col,
        }
    }

    /// Returns the bias of a byte in [`KvType::Q8_0`]; products take keys as unsigned bytes.
    fn byte_bias(self) -> u8 {
        match self {
            Self::Keys => 128,
            Self::Values | Self::Rows => 0,
        }
    }
}

/// Returns the number of columns that a page has for the values of a head.
pub(crate) fn padded_dim(head_dim_v: usize) -> usize {
    head_dim_v.next_multiple_of(PAGE_TOKENS)
}

impl Half {
    fn new(
        ty: KvType,
        order: PageOrder,
        [n_heads, head_dim]: [usize; 2],
        rotation: usize,
        n_pages: usize,
    ) -> Result<Self, CpuExecError> {
        if !head_dim.is_multiple_of(ty.block_len()) {
            return Err(CpuExecError::KvHeadDim {
                head_dim,
                ty: ty.name(),
            });
        }
        let page_bytes = PAGE_TOKENS * ty.head_bytes(order.padded(head_dim));
        let n_bytes = n_pages
            .checked_mul(page_bytes)
            .and_then(|n_bytes| n_bytes.checked_mul(n_heads))
            .filter(|&n_bytes| isize::try_from(n_bytes).is_ok())
            .ok_or(CpuExecError::KvTooLarge { n_pages })?;
        Ok(Self {
            ty,
            order,
            head_dim,
            rotation: ty.is_rotated().then_some(rotation),
            page_bytes,
            n_pages,
            bytes: zeroed(n_bytes, "the KV store")?,
        })
    }

    fn page(&self, head_idx: usize, page: u32) -> &[u8] {
        assert!(
            (page as usize) < self.n_pages,
            "page {page} of {} pages",
            self.n_pages
        );
        &self.bytes[(head_idx * self.n_pages + page as usize) * self.page_bytes..][..self.page_bytes]
    }

    fn store(&mut self, host: &Host, slots: &[u32], rows: &[f32]) {
        let (ty, order, head_dim, page_bytes) = (self.ty, self.order, self.head_dim, self.page_bytes);
        let (rotation, features) = (self.rotation, host.features());
        let head_stride = self.n_pages * page_bytes;
        if head_stride == 0 || slots.is_empty() {
            assert!(
                slots.is_empty() || page_bytes == 0,
                "a slot outside an empty KV store"
            );
            return;
        }
        let n_heads = self.bytes.len() / head_stride;
        assert_eq!(
            rows.len(),
            slots.len() * n_heads * head_dim,
            "values of {} tokens",
            slots.len()
        );
        let store_head = |head_idx: usize, head: &mut [u8]| {
            for (token_idx, &slot) in slots.iter().enumerate() {
                let row = &rows[(token_idx * n_heads + head_idx) * head_dim..][..head_dim];
                let (page, lane) = (slot as usize / PAGE_TOKENS, slot as usize % PAGE_TOKENS);
                let page = &mut head[page * page_bytes..][..page_bytes];
                let Some(rotation) = rotation else {
                    encode(ty, order, row, lane, page);
                    continue;
                };
                // `MAX_ROTATION` is a whole number of rotations, and of blocks that share a scale.
                let mut rotated = [0.0; MAX_ROTATION];
                let part_bytes = PAGE_TOKENS * ty.head_bytes(MAX_ROTATION);
                for (row, page) in row.chunks(MAX_ROTATION).zip(page.chunks_mut(part_bytes)) {
                    let rotated = &mut rotated[..row.len()];
                    rotated.copy_from_slice(row);
                    rotate(features, rotated, rotation);
                    encode(ty, order, rotated, lane, page);
                }
            }
        };
        if rows.len() < MIN_SHARED_LEN {
            for (head_idx, head) in self.bytes.chunks_exact_mut(head_stride).enumerate() {
                store_head(head_idx, head);
            }
        } else {
            host.pool()
                .for_each_chunk(&mut self.bytes, head_stride, store_head);
        }
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        let (page_bytes, n_pages) = (self.page_bytes, self.n_pages);
        assert!(
            from < n_pages && to < n_pages,
            "copy of page {from} to {to} of {n_pages}"
        );
        for head in self.bytes.chunks_exact_mut((n_pages * page_bytes).max(1)) {
            head.copy_within(from * page_bytes..(from + 1) * page_bytes, to * page_bytes);
        }
    }

    fn copy_page_from(&mut self, other: &Self, from: usize, to: usize) {
        assert_eq!(
            (self.ty, self.head_dim),
            (other.ty, other.head_dim),
            "types of two KV stores"
        );
        let page_bytes = self.page_bytes;
        let own_heads = self.bytes.chunks_exact_mut((self.n_pages * page_bytes).max(1));
        let other_heads = other.bytes.chunks_exact((other.n_pages * page_bytes).max(1));
        for (own, other) in own_heads.zip(other_heads) {
            own[to * page_bytes..][..page_bytes].copy_from_slice(&other[from * page_bytes..][..page_bytes]);
        }
    }
}

/// The number of values below which dividing them between threads takes longer than storing them.
const MIN_SHARED_LEN: usize = 4096;

/// Writes the row of token `lane` to a page.
fn encode(ty: KvType, order: PageOrder, row: &[f32], lane: usize, page: &mut [u8]) {
    let dim = order.padded(row.len());
    match ty {
        KvType::F32 => {
            let (page, _) = page.as_chunks_mut::<4>();
            for (col, x) in row.iter().enumerate() {
                page[order.index(dim, lane, col)] = x.to_le_bytes();
            }
        }
        KvType::F16 => {
            let (page, _) = page.as_chunks_mut::<2>();
            for (col, &x) in row.iter().enumerate() {
                page[order.index(dim, lane, col)] = f16::from_f32(x).to_le_bytes();
            }
        }
        KvType::Q8_0 => {
            let blocks = page.chunks_exact_mut(PAGE_TOKENS * (BLOCK + 2));
            for (block, row) in blocks.zip(row.as_chunks::<BLOCK>().0) {
                let max = row.iter().fold(
                    0.0f32,
                    |max, x| if x.is_nan() { f32::NAN } else { max.max(x.abs()) },
                );
                let scale = f16::from_f32(max / 127.0);
                let inverse = if scale.to_f32() == 0.0 {
                    0.0
                } else {
                    1.0 / scale.to_f32()
                };
                let (scales, quants) = block.split_at_mut(2 * PAGE_TOKENS);
                scales[2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
                for (col, x) in row.iter().enumerate() {
                    let quant = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
                    quants[order.byte_index(lane, col)] = (quant as u8).wrapping_add(order.byte_bias());
                }
            }
        }
        KvType::E4M3 => {
            for (col, &x) in row.iter().enumerate() {
                page[order.index(dim, lane, col)] = e4m3::encode(x);
            }
        }
        KvType::Q4_0 => {
            let blocks = page.chunks_exact_mut(PAGE_TOKENS * (BLOCK / 2 + 2));
            for (block, row) in blocks.zip(row.as_chunks::<BLOCK>().0) {
                let scale = q4_scale(row);
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let (scales, quants) = block.split_at_mut(2 * PAGE_TOKENS);
                scales[2 * lane..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                for (col, x) in row.iter().enumerate() {
                    let bits = (x * inverse + 8.5).clamp(0.0, 15.0) as u8;
                    let at = order.index(BLOCK, lane, col);
                    let byte = &mut quants[at % Q4_HALF];
                    *byte = if at < Q4_HALF {
                        *byte & 0xf0 | bits
                    } else {
                        *byte & 0x0f | bits << 4
                    };
                }
            }
        }
    }
}

/// Returns the scale of a block in [`KvType::Q4_0`], as for GGUF's type of that name: the number of the
/// largest magnitude becomes -8. NaN if one of the numbers is NaN.
fn q4_scale(row: &[f32; BLOCK]) -> f32 {
    let largest = row.iter().fold(0.0f32, |largest, &x| {
        if x.is_nan() || x.abs() > largest.abs() {
            x
        } else {
            largest
        }
    });
    largest / -8.0
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    const SHAPE: KvLayerShape = KvLayerShape {
        n_kv_heads: 3,
        head_dim_k: 64,
        head_dim_v: 32,
        has_values_in_keys: false,
    };

    fn row(seed: usize, len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((seed * 31 + i * 17) % 255) as f32 / 127.0 - 1.0)
            .collect()
    }

    fn filled(ty: KvType) -> (KvStore, Vec<u32>, Vec<f32>, Vec<f32>) {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let mut store = KvStore::new(&[SHAPE; 2], 4, ty, ty).unwrap();
        let slots = vec![0, 17, 63, 5];
        let keys = row(1, slots.len() * SHAPE.n_kv_heads * SHAPE.head_dim_k);
        let values = row(2, slots.len() * SHAPE.n_kv_heads * SHAPE.head_dim_v);
        store.store(&host, 1, &slots, &keys, &values);
        (store, slots, keys, values)
    }

    /// Reads the row that a page holds for a token.
    fn read(half: &Half, head_idx: usize, slot: u32, out: &mut [f32]) {
        let lane = slot as usize % PAGE_TOKENS;
        let page = half.page(head_idx, slot / PAGE_TOKENS as u32);
        let dim = half.order.padded(half.head_dim);
        for (col, out) in out.iter_mut().enumerate() {
            let at = half.order.index(dim, lane, col);
            *out = match half.ty {
                KvType::F32 => f32::from_le_bytes(page.as_chunks::<4>().0[at]),
                KvType::F16 => f16::from_le_bytes(page.as_chunks::<2>().0[at]).to_f32(),
                KvType::Q8_0 => {
                    let block = &page[col / BLOCK * PAGE_TOKENS * (BLOCK + 2)..];
                    let (scales, quants) = block.split_at(2 * PAGE_TOKENS);
                    let quant = quants[half.order.byte_index(lane, col % BLOCK)];
                    let quant = quant.wrapping_sub(half.order.byte_bias()) as i8;
                    f16::from_le_bytes(scales.as_chunks::<2>().0[lane]).to_f32() * f32::from(quant)
                }
                KvType::E4M3 => e4m3::decode(page[at]),
                KvType::Q4_0 => {
                    let block = &page[col / BLOCK * PAGE_TOKENS * (BLOCK / 2 + 2)..];
                    let (scales, quants) = block.split_at(2 * PAGE_TOKENS);
                    let at = half.order.index(BLOCK, lane, col % BLOCK);
                    let quant = quants[at % Q4_HALF] >> (at / Q4_HALF * 4) & 0xf;
                    f16::from_le_bytes(scales.as_chunks::<2>().0[lane]).to_f32() * (f32::from(quant) - 8.0)
                }
            };
        }
        if let Some(rotation) = half.rotation {
            rotate(CpuFeatures::scalar(), out, rotation);
        }
    }

    #[test]
    fn what_was_stored_is_read_within_the_types_rounding() {
        // With 4 bits, an error of half a step, at most 3/16 after a rotation of numbers up to 1, is spread
        // over the head.
        for (ty, tolerance) in [
            (KvType::F32, 0.0),
            (KvType::F16, 5e-4),
            (KvType::Q8_0, 4.2e-3),
            (KvType::E4M3, 1.0 / 32.0),
            (KvType::Q4_0, 0.4),
        ] {
            let (store, slots, keys, values) = filled(ty);
            for (token_idx, &slot) in slots.iter().enumerate() {
                for head_idx in 0..SHAPE.n_kv_heads {
                    let at = token_idx * SHAPE.n_kv_heads + head_idx;
                    let (mut key, mut value) = (vec![0.0; SHAPE.head_dim_k], vec![0.0; SHAPE.head_dim_v]);
                    read(&store.keys[1], head_idx, slot, &mut key);
                    read(&store.values[1], head_idx, slot, &mut value);
                    let expected = keys[at * SHAPE.head_dim_k..].iter().chain(&[]);
                    assert!(key.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance));
                    let expected = &values[at * SHAPE.head_dim_v..];
                    assert!(
                        value
                            .iter()
                            .zip(expected)
                            .all(|(a, b)| (a - b).abs() <= tolerance)
                    );
                }
            }
        }
    }

    #[test]
    fn a_copied_page_reads_the_same() {
        for ty in KvType::ALL {
            let (mut store, ..) = filled(ty);
            let mut tier = KvStore::new(&[SHAPE; 2], 2, ty, ty).unwrap();
            tier.copy_page_from(&store, 1, 0);
            store.copy_page(1, 2);
            let mut reads = [[0.0; 64]; 3];
            read(&store.keys[1], 2, 17, &mut reads[0]);
            read(&store.keys[1], 2, 33, &mut reads[1]);
            read(&tier.keys[1], 2, 1, &mut reads[2]);
            assert!(reads[0] == reads[1] && reads[0] == reads[2] && reads[0].iter().any(|x| *x != 0.0));
        }
    }

    #[test]
    fn the_bytes_of_a_page_are_those_allocated() {
        for ty in KvType::ALL {
            for head_dim_v in [32, 64, 40] {
                let shapes = [SHAPE, KvLayerShape { head_dim_v, ..SHAPE }];
                let value_ty = if head_dim_v == 40 { KvType::F16 } else { ty };
                let store = KvStore::new(&shapes, 3, ty, value_ty).unwrap();
                assert_eq!(store.n_bytes(), 3 * KvStore::page_bytes(&shapes, ty, value_ty));
            }
        }
    }

    #[test]
    fn heads_that_do_not_fit_blocks_are_refused() {
        let shape = KvLayerShape {
            head_dim_k: 40,
            ..SHAPE
        };
        assert!(KvStore::new(&[shape], 1, KvType::F16, KvType::Q8_0).is_ok());
        assert!(matches!(
            KvStore::new(&[shape], 1, KvType::Q8_0, KvType::F16),
            Err(CpuExecError::KvHeadDim { head_dim: 40, .. })
        ));
        assert!(matches!(
            KvStore::new(&[SHAPE], usize::MAX / 64, KvType::F16, KvType::F16),
            Err(CpuExecError::KvTooLarge { .. })
        ));
    }

    #[test]
    fn a_store_beyond_all_memory_is_refused() {
        let shape = KvLayerShape {
            n_kv_heads: 8,
            head_dim_k: 128,
            head_dim_v: 128,
            has_values_in_keys: false,
        };
        let error = |n_pages| KvStore::new(&[shape], n_pages, KvType::F16, KvType::F16).unwrap_err();
        // No machine can address 2^58 bytes; a request for more than `isize::MAX` does not even reach the
        // system.
        assert!(matches!(
            error(1 << 43),
            CpuExecError::OutOfMemory { what: "the KV store", n_bytes } if n_bytes == 1 << 58
        ));
        assert!(matches!(error(1 << 50), CpuExecError::KvTooLarge { .. }));
    }
}
