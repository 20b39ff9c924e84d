//! [`KvStore`]: keys and values in pages on the device, with a host tier in pinned memory.
//!
//! A layer has two arrays, keys and values, `[n_pages, n_kv_heads, 16, row]` with a row rounded up to 8 numbers, so a page of a layer is
//! one run of bytes (`kernels/kv.cuh`); a layer whose values are part of its keys has one. Pages move on separate streams, in parallel
//! with the computation. Invariant: moves run after the steps that touched their pages, and work queued after [`KvStore::await_pages`]
//! named a page runs after the moves of that page.

mod bytes;
mod moves;

use tokenmill_backend::{KvLayerShape, KvLayout, KvType, PAGE_TOKENS, PageCopy};

use self::moves::Moves;
use crate::{Buffer, CudaExecError, Device, PageRows, Stream, View, ViewMut, error::Result};

/// A page of a layer has a multiple of this many bytes, so that arrays of pages are adjacent without gaps.
const PAGE_ALIGN: usize = 256;

/// Types of keys and of values.
type KvTypes = [KvType; 2];

/// Returns the bytes of a page's keys, and of its values if they are stored separately.
fn layer_page_bytes(shape: KvLayerShape, types: KvTypes) -> [usize; 2] {
    let bytes = |dim: usize, ty: KvType| {
        let n_bytes = shape.n_kv_heads * PAGE_TOKENS * ty.head_bytes(dim.next_multiple_of(8));
        // Pages of other types are multiples of it without padding.
        n_bytes.next_multiple_of(PAGE_ALIGN)
    };
    [
        bytes(shape.head_dim_k, types[0]),
        bytes(shape.own_value_dim(), types[1]),
    ]
}

#[derive(Debug)]
struct Layer {
    shape: KvLayerShape,
    k: Buffer<u8>,
    /// `None` if values are part of the keys.
    v: Option<Buffer<u8>>,
}

impl Layer {
    /// Returns the arrays, each with the bytes of its pages.
    fn arrays(&self, types: KvTypes) -> impl Iterator<Item = (&Buffer<u8>, usize)> {
        let n_bytes = layer_page_bytes(self.shape, types);
        [Some(&self.k), self.v.as_ref()]
            .into_iter()
            .zip(n_bytes)
            .filter_map(|(buffer, n_bytes)| Some((buffer?, n_bytes)))
    }
}

/// A layer's pages, to read.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    /// The types of keys and of values.
    pub(crate) types: KvTypes,
    pub(crate) shape: KvLayerShape,
    pub(crate) k: View<'a, u8>,
    /// The values; the view of the keys if values are part of them.
    pub(crate) v: View<'a, u8>,
}

/// A layer's pages, to write.
#[derive(Debug)]
pub struct KvLayerMut<'a> {
    /// The types of keys and of values.
    pub(crate) types: KvTypes,
    pub(crate) shape: KvLayerShape,
    pub(crate) k: ViewMut<'a, u8>,
    /// `None` if values are part of the keys.
    pub(crate) v: Option<ViewMut<'a, u8>>,
}

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvStore {
    types: KvTypes,
    layers: Vec<Layer>,
    page_bytes: usize,
    moves: Moves,
}

impl KvStore {
    /// Allocates the pages on the device and those of the host tier in pinned memory, all zero.
    ///
    /// # Errors
    /// As [`Self::check`], [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn new(device: &Device, layout: &KvLayout) -> Result<Self> {
        Self::check(layout)?;
        let has_values = layout.layers.iter().any(|shape| !shape.has_values_in_keys);
        // If no layer stores values, they are part of the keys.
        let types = [
            layout.key_type,
            if has_values {
                layout.value_type
            } else {
                layout.key_type
            },
        ];
        let (n_pages, n_host_pages) = (layout.n_pages, layout.n_host_pages);
        let mut layers = Vec::with_capacity(layout.layers.len());
        for &shape in &layout.layers {
            let [k_bytes, v_bytes] = layer_page_bytes(shape, types);
            let zeroed = |n_bytes| -> Result<Buffer<u8>> {
                let mut buffer = device.alloc("keys and values", n_bytes)?;
                // A page that is moved before it is full is still copied whole.
                device.zero(Stream::Compute, &buffer.view_mut())?;
                Ok(buffer)
            };
            layers.push(Layer {
                shape,
                k: zeroed(k_bytes * n_pages)?,
                v: if shape.has_values_in_keys {
                    None
                } else {
                    Some(zeroed(v_bytes * n_pages)?)
                },
            });
        }
        let arrays = layers.iter().flat_map(|layer| layer.arrays(types));
        let rows = PageRows::arrange(arrays, n_pages);
        Ok(Self {
            types,
            page_bytes: Self::page_bytes(layout),
            moves: Moves::new(device, rows, n_pages, n_host_pages)?,
            layers,
        })
    }

    /// Checks that kernels take heads of these widths and store keys and values of these types.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] if a head is too wide or a type is not stored.
    pub fn check(layout: &KvLayout) -> Result<()> {
        for shape in &layout.layers {
            check_head_dims(shape.head_dim_k, shape.head_dim_v)?;
        }
        let types = [layout.key_type, layout.value_type];
        let has_values = layout.layers.iter().any(|shape| !shape.has_values_in_keys);
        if has_values && types.contains(&KvType::E4M3) && types != [KvType::E4M3; 2] {
            return Err(CudaExecError::Unsupported {
                feature: format!(
                    "{} keys with {} values; e4m3 is stored of both or of neither",
                    types[0], types[1]
                ),
            });
        }
        for shape in &layout.layers {
            check_type(
                layout.key_type,
                "keys",
                shape.head_dim_k,
                shape.has_values_in_keys,
            )?;
            if !shape.has_values_in_keys {
                check_type(layout.value_type, "values", shape.head_dim_v, false)?;
            }
        }
        Ok(())
    }

    /// Returns whether there are kernels for keys and values of these types, for heads of [some widths](Self::check).
    pub fn takes(types: [KvType; 2]) -> bool {
        !types.contains(&KvType::Q4_0) && (types[0] == KvType::E4M3) == (types[1] == KvType::E4M3)
    }

    /// Bytes of a page, all layers.
    pub fn page_bytes(layout: &KvLayout) -> usize {
        (layout.layers.iter())
            .flat_map(|&shape| layer_page_bytes(shape, [layout.key_type, layout.value_type]))
            .sum()
    }

    /// Returns the shapes of its layers.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = KvLayerShape> {
        self.layers.iter().map(|layer| layer.shape)
    }

    /// Returns a layer, to read.
    pub fn layer(&self, layer_idx: usize) -> KvLayer<'_> {
        let layer = &self.layers[layer_idx];
        KvLayer {
            types: self.types,
            shape: layer.shape,
            k: layer.k.view(),
            v: layer.v.as_ref().unwrap_or(&layer.k).view(),
        }
    }

    /// Returns a layer, to write.
    pub fn layer_mut(&mut self, layer_idx: usize) -> KvLayerMut<'_> {
        let layer = &mut self.layers[layer_idx];
        KvLayerMut {
            types: self.types,
            shape: layer.shape,
            k: layer.k.view_mut(),
            v: layer.v.as_mut().map(Buffer::view_mut),
        }
    }

    /// Queues copies, in order, after the steps that touched their pages.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`] for a page that does not exist, before anything is copied; or the driver's.
    pub fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<()> {
        self.moves.queue(copies)
    }

    /// Makes work queued from now on wait for the moves that touch one of `pages`. Invalid page numbers are ignored.
    ///
    /// # Errors
    /// The driver's.
    pub fn await_pages(&mut self, pages: &[u32]) -> Result<()> {
        self.moves.await_pages(pages)
    }
}

/// Says whether rows of a head can be stored in a type.
fn check_type(ty: KvType, what: &str, dim: usize, is_latent: bool) -> Result<()> {
    let refused = |reason: String| {
        Err(CudaExecError::Unsupported {
            feature: format!("{ty} {what} {reason}; f16 and f32 can be stored"),
        })
    };
    match ty {
        KvType::Q4_0 => Err(CudaExecError::Unsupported {
            feature: format!("{ty} {what}; f16, f32, q8_0 and e4m3 can be stored"),
        }),
        KvType::Q8_0 if is_latent => refused("of latent attention".to_owned()),
        KvType::Q8_0 if !dim.is_multiple_of(32) => {
            refused(format!("of heads of {dim} numbers (only of multiples of 32)"))
        }
        KvType::E4M3 if !dim.is_multiple_of(16) => {
            refused(format!("of heads of {dim} numbers (only of multiples of 16)"))
        }
        _ => Ok(()),
    }
}

/// Widest head of the kernels.
const MAX_HEAD_DIM: usize = 1024;

/// Returns whether the kernels take heads of these widths.
pub(crate) fn check_head_dims(dim_k: usize, dim_v: usize) -> Result<()> {
    let widest = dim_k.max(dim_v);
    if widest <= MAX_HEAD_DIM {
        return Ok(());
    }
    Err(CudaExecError::Unsupported {
        feature: format!("attention with heads of {widest} values (at most {MAX_HEAD_DIM})"),
    })
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::PageGroup;
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    const SHAPES: [KvLayerShape; 3] = [
        KvLayerShape {
            n_kv_heads: 2,
            head_dim_k: 12,
            head_dim_v: 8,
            has_values_in_keys: false,
        },
        KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: 8,
            head_dim_v: 24,
            has_values_in_keys: false,
        },
        KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: 20,
            head_dim_v: 12,
            has_values_in_keys: true,
        },
    ];

    pub(super) fn layout(types: KvTypes, n_pages: usize, n_host_pages: usize) -> KvLayout {
        KvLayout {
            layers: SHAPES.to_vec(),
            groups: vec![PageGroup::Main; SHAPES.len()],
            n_window_pages: 0,
            n_window_host_pages: 0,
            n_pages,
            n_host_pages,
            key_type: types[0],
            value_type: types[1],
        }
    }

    /// Fills a page of every layer with numbers that no other page has.
    pub(super) fn fill(device: &Device, store: &mut KvStore, page: usize, seed: u8) {
        for layer in &mut store.layers {
            let n_bytes = layer_page_bytes(layer.shape, store.types);
            let arrays = [Some(&mut layer.k), layer.v.as_mut()].into_iter().zip(n_bytes);
            for (buffer, n_bytes) in arrays.filter_map(|(buffer, n_bytes)| Some((buffer?, n_bytes))) {
                let values: Vec<u8> = (0..n_bytes).map(|i| (i as u8).wrapping_mul(seed)).collect();
                let range = page * n_bytes..(page + 1) * n_bytes;
                device
                    .upload_to(&values, &buffer.view_mut().range(range).unwrap())
                    .unwrap();
            }
        }
    }

    pub(super) fn read(device: &Device, store: &mut KvStore, page: usize) -> Vec<u8> {
        store.await_pages(&[page as u32]).unwrap();
        let mut bytes = Vec::new();
        for layer in &store.layers {
            for (buffer, n_bytes) in layer.arrays(store.types) {
                let range = page * n_bytes..(page + 1) * n_bytes;
                bytes.extend(device.download(buffer.view().range(range).unwrap()).unwrap());
            }
        }
        bytes
    }

    #[test]
    fn what_kernels_do_not_take_is_refused() {
        let check = |types, head_dim_k, has_values_in_keys, expected: Option<&str>| {
            let shape = KvLayerShape {
                n_kv_heads: 1,
                head_dim_k,
                head_dim_v: 32,
                has_values_in_keys,
            };
            let layout = KvLayout {
                layers: vec![shape],
                groups: vec![PageGroup::Main],
                ..layout(types, 1, 0)
            };
            let error = KvStore::check(&layout).err().map(|error| error.to_string());
            match expected {
                Some(expected) => assert!(error.as_ref().is_some_and(|e| e.contains(expected)), "{error:?}"),
                None => assert_eq!(error, None),
            }
        };
        let [f16, q8, e4m3] = [KvType::F16, KvType::Q8_0, KvType::E4M3];
        check([e4m3; 2], 48, false, None);
        check(
            [e4m3; 2],
            40,
            false,
            Some("e4m3 keys of heads of 40 numbers (only of multiples of 16)"),
        );
        check(
            [q8, f16],
            48,
            false,
            Some("q8_0 keys of heads of 48 numbers (only of multiples of 32)"),
        );
        check(
            [f16, e4m3],
            48,
            false,
            Some("f16 keys with e4m3 values; e4m3 is stored of both or of neither"),
        );
        // Latent rows are stored once, whatever the type of the values would be.
        check([e4m3, f16], 48, true, None);
        check([q8, q8], 64, true, Some("q8_0 keys of latent attention"));
        for types in KvType::ALL
            .map(|keys| KvType::ALL.map(|values| [keys, values]))
            .concat()
        {
            assert_eq!(
                KvStore::check(&alike_of(types)).is_ok(),
                KvStore::takes(types),
                "{types:?}"
            );
        }
    }

    fn alike_of(types: KvTypes) -> KvLayout {
        let shape = KvLayerShape {
            n_kv_heads: 1,
            head_dim_k: 32,
            head_dim_v: 32,
            has_values_in_keys: false,
        };
        KvLayout {
            layers: vec![shape],
            groups: vec![PageGroup::Main],
            ..layout(types, 1, 0)
        }
    }

    #[test]
    fn pages_survive_the_way_to_the_host_and_back() {
        for types in [[KvType::F16; 2], [KvType::F32; 2]] {
            let device = simulated(&Simulator::new(&SimOptions::default()));
            let mut store = KvStore::new(&device, &layout(types, 5, 3)).unwrap();
            fill(&device, &mut store, 1, 7);
            fill(&device, &mut store, 2, 11);
            let (one, two) = (read(&device, &mut store, 1), read(&device, &mut store, 2));
            assert_ne!(one, two);
            store
                .copy_pages(&[
                    PageCopy::Download {
                        page: 1,
                        host_page: 2,
                    },
                    PageCopy::Duplicate { from: 2, to: 1 },
                    PageCopy::Upload {
                        host_page: 2,
                        page: 4,
                    },
                    PageCopy::Duplicate { from: 4, to: 4 },
                ])
                .unwrap();
            assert_eq!(read(&device, &mut store, 4), one);
            assert_eq!(read(&device, &mut store, 1), two);
            assert_eq!(read(&device, &mut store, 2), two);
        }
    }

    /// Layers that are alike, so that a page of all of them is one copy.
    pub(super) fn alike(n_layers: usize, n_pages: usize, n_host_pages: usize) -> KvLayout {
        let shape = KvLayerShape {
            n_kv_heads: 2,
            head_dim_k: 16,
            head_dim_v: 16,
            has_values_in_keys: false,
        };
        KvLayout {
            layers: vec![shape; n_layers],
            groups: vec![PageGroup::Main; n_layers],
            ..layout([KvType::F16; 2], n_pages, n_host_pages)
        }
    }

    #[test]
    fn a_page_of_layers_that_are_alike_is_one_copy_and_a_batch_one_event() {
        let simulator = Simulator::new(&SimOptions::default());
        let device = simulated(&simulator);
        let mut store = KvStore::new(&device, &alike(8, 6, 4)).unwrap();
        fill(&device, &mut store, 1, 7);
        fill(&device, &mut store, 2, 11);
        let expected = [read(&device, &mut store, 1), read(&device, &mut store, 2)];
        let (copies, events) = (simulator.copy_counts(), simulator.n_recorded());
        let down = |page, host_page| PageCopy::Download { page, host_page };
        let up = |host_page, page| PageCopy::Upload { host_page, page };
        store.copy_pages(&[down(1, 0), down(2, 1)]).unwrap();
        assert_eq!(simulator.copy_counts(), (copies.0, copies.1 + 2));
        // One before the moves, one after them, and that of the host's memory.
        assert_eq!(simulator.n_recorded() - events, 3);
        store.copy_pages(&[up(1, 4), up(0, 5)]).unwrap();
        assert_eq!(simulator.copy_counts(), (copies.0 + 2, copies.1 + 2));
        assert_eq!(read(&device, &mut store, 5), expected[0]);
        assert_eq!(read(&device, &mut store, 4), expected[1]);
    }

    #[test]
    fn moves_of_both_directions_keep_their_order_where_they_share_a_page() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut store = KvStore::new(&device, &alike(2, 4, 3)).unwrap();
        let mut rng = 1u64;
        let mut random = |n: u32| {
            rng = rng
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (rng >> 33) as u32 % n
        };
        for page in 0..4 {
            fill(&device, &mut store, page, 3 + page as u8 * 2);
        }
        // The contents of pages and host pages, by the page that first held them.
        let contents: Vec<_> = (0..4).map(|page| read(&device, &mut store, page)).collect();
        let mut pages = [0, 1, 2, 3];
        let mut on_host = [None; 3];
        for _ in 0..40 {
            let mut batch = Vec::new();
            for _ in 0..=random(5) {
                let (page, host_page, to) = (random(4), random(3), random(4));
                match (random(3), on_host[host_page as usize]) {
                    (0, Some(content)) => {
                        pages[page as usize] = content;
                        batch.push(PageCopy::Upload { host_page, page });
                    }
                    (1, _) => {
                        pages[to as usize] = pages[page as usize];
                        batch.push(PageCopy::Duplicate { from: page, to });
                    }
                    _ => {
                        on_host[host_page as usize] = Some(pages[page as usize]);
                        batch.push(PageCopy::Download { page, host_page });
                    }
                }
            }
            store.copy_pages(&batch).unwrap();
            if random(3) == 0 {
                let page = random(4);
                let found = read(&device, &mut store, page as usize);
                assert!(found == contents[pages[page as usize]], "page {page}");
            }
        }
        for (page, &content) in pages.iter().enumerate() {
            assert!(
                read(&device, &mut store, page) == contents[content],
                "page {page}"
            );
        }
    }

    #[test]
    fn a_page_that_does_not_exist_moves_nothing() {
        let device = simulated(&Simulator::new(&SimOptions::default()));
        let mut store = KvStore::new(&device, &layout([KvType::F16; 2], 2, 1)).unwrap();
        fill(&device, &mut store, 0, 3);
        let before = read(&device, &mut store, 1);
        for bad in [
            PageCopy::Duplicate { from: 0, to: 2 },
            PageCopy::Download {
                page: 0,
                host_page: 1,
            },
            PageCopy::Upload {
                host_page: 1,
                page: 0,
            },
        ] {
            let moves = [PageCopy::Duplicate { from: 0, to: 1 }, bad];
            assert!(matches!(
                store.copy_pages(&moves),
                Err(CudaExecError::Bounds { .. })
            ));
        }
        assert_eq!(read(&device, &mut store, 1), before);
    }
}
