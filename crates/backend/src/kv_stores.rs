//! [`KvStores`]: a backend's stores of keys and values, one per group of pages.
//!
//! Every backend has its own kind of store. Invariant: a store knows nothing about groups; its layers are
//! numbered as if it were the only one.

use crate::{KvLayout, PageGroup};

/// One store per group of pages, and the place of each layer in them.
#[derive(Debug)]
pub struct KvStores<S> {
    stores: Vec<S>,
    places: Vec<(PageGroup, usize)>,
}

impl<S> KvStores<S> {
    /// Creates a store for each group of `layout`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn new<E>(layout: &KvLayout, make: impl FnMut(KvLayout) -> Result<S, E>) -> Result<Self, E> {
        let mut n_layers = [0; PageGroup::ALL.len()];
        let places = (layout.groups.iter())
            .map(|&group| {
                let place = n_layers[group.index()];
                n_layers[group.index()] += 1;
                (group, place)
            })
            .collect();
        Ok(Self {
            stores: layout.by_group().map(make).collect::<Result<_, E>>()?,
            places,
        })
    }

    /// Returns the group of a layer, and the layer's index in that group's store.
    pub fn place(&self, layer_idx: usize) -> (PageGroup, usize) {
        self.places[layer_idx]
    }

    /// Returns the store of an existing group.
    pub fn group(&self, group: PageGroup) -> &S {
        &self.stores[group.index()]
    }

    /// Returns the store of an existing group, mutably.
    pub fn group_mut(&mut self, group: PageGroup) -> &mut S {
        &mut self.stores[group.index()]
    }

    /// Returns the stores with their groups.
    pub fn iter(&self) -> impl Iterator<Item = (PageGroup, &S)> {
        PageGroup::ALL.into_iter().zip(&self.stores)
    }

    /// Returns the stores with their groups, mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PageGroup, &mut S)> {
        PageGroup::ALL.into_iter().zip(&mut self.stores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvLayerShape, KvType};

    #[test]
    fn layers_are_numbered_in_their_group() {
        let shape = |n_kv_heads| KvLayerShape {
            n_kv_heads,
            head_dim_k: 4,
            head_dim_v: 4,
            has_values_in_keys: false,
        };
        let (main, window) = (PageGroup::Main, PageGroup::Window);
        let mut layout = KvLayout {
            layers: vec![shape(1), shape(2), shape(3), shape(4)],
            groups: vec![window, main, window, window],
            n_pages: 9,
            n_host_pages: 2,
            n_window_pages: 5,
            n_window_host_pages: 1,
            key_type: KvType::F32,
            value_type: KvType::F32,
        };
        let make = |layout: KvLayout| {
            let heads: Vec<usize> = layout.layers.iter().map(|shape| shape.n_kv_heads).collect();
            Ok::<_, ()>((heads, layout.n_pages, layout.n_host_pages))
        };
        let stores = KvStores::new(&layout, make).unwrap();
        assert_eq!(*stores.group(main), (vec![2], 9, 2));
        assert_eq!(*stores.group(window), (vec![1, 3, 4], 5, 1));
        let places = [0, 1, 2, 3].map(|layer_idx| stores.place(layer_idx));
        assert_eq!(places, [(window, 0), (main, 0), (window, 1), (window, 2)]);

        layout.groups.fill(main);
        assert_eq!(layout.by_group().count(), 1);
    }
}
