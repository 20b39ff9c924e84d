//! [`keep_within`]: the contexts of a model that the memory budget of all models has room for.

use std::path::Path;

use tokenmill::{KvCache, LoadOptions, load::ModelSource};

use crate::{failure::Failure, numbers::size_of};

/// The context of a model that shall take as little memory as it can: one page of the KV cache.
const LEAST_CONTEXT: usize = 16;

/// Gives a model as many contexts as the memory budget has room for.
///
/// # Errors
/// A model that takes more than the budget with one context. Faults of its file are left to the load, which reports them.
pub(super) fn keep_within(
    name: &str,
    path: &Path,
    options: &mut LoadOptions,
    budget_bytes: u64,
) -> Result<(), Failure> {
    let opened = ModelSource::find(path).and_then(|source| {
        let network = options.open_network(&source)?;
        Ok((source, network))
    });
    let Ok((source, network)) = opened else {
        return Ok(());
    };
    let most = match options.kv_cache {
        KvCache::Fitting(most) => most,
        KvCache::Contexts(_) | KvCache::Tokens(_) => 1,
    };
    let mut needed_bytes = 0;
    for n_contexts in (1..=most).rev() {
        let mut tried = options.clone();
        if let KvCache::Fitting(_) = tried.kv_cache {
            tried.kv_cache = KvCache::Contexts(n_contexts);
        }
        let Ok(n_bytes) = tried.needed_bytes(&source, &network) else {
            return Ok(());
        };
        if n_bytes <= budget_bytes {
            if n_contexts < most {
                options.kv_cache = KvCache::Fitting(n_contexts);
            }
            return Ok(());
        }
        needed_bytes = n_bytes;
    }
    let least = LoadOptions {
        n_ctx: Some(LEAST_CONTEXT),
        kv_cache: KvCache::Contexts(1),
        ..options.clone()
    };
    let fits_with_less = (least.needed_bytes(&source, &network)).is_ok_and(|n_bytes| n_bytes <= budget_bytes);
    let n_ctx = options.network_options(network.descriptor())?.n_ctx;
    Err(Failure::input(format!(
        "`{name}` takes {} with a context of {} tokens, and the memory budget is {}",
        size_of(needed_bytes),
        n_ctx.unwrap_or(network.descriptor().n_ctx_train),
        size_of(budget_bytes)
    ))
    .hint(match (fits_with_less, options.kv_cache) {
        (false, _) => "no context is small enough: give a larger `--memory-budget`, or take a smaller model",
        (true, KvCache::Tokens(_)) => {
            "give fewer tokens with `--kv-cache-tokens N`, or a larger `--memory-budget`"
        }
        (true, _) => "give a smaller context with `-c N`, or a larger `--memory-budget`",
    }))
}

#[cfg(test)]
mod tests {
    use tokenmill::Model;

    use super::*;

    #[test]
    fn a_model_gets_the_contexts_that_the_budget_has_room_for() {
        let demo = Path::new("demo");
        let with = |kv_cache| LoadOptions {
            kv_cache,
            ..Model::options().context(512).threads(1)
        };
        let needed = |n_contexts| {
            let options = with(KvCache::Contexts(n_contexts));
            let source = ModelSource::find(demo).expect("it is built in");
            let network = options.open_network(&source).expect("it is whole");
            options.needed_bytes(&source, &network).expect("a plan")
        };
        for (budget_bytes, expected) in [(needed(4), 4), (needed(4) - 1, 3), (needed(1), 1)] {
            let mut options = with(KvCache::Fitting(4));
            keep_within("demo", demo, &mut options, budget_bytes).expect("there is room");
            assert_eq!(options.kv_cache, KvCache::Fitting(expected));
        }
        for (kv_cache, budget_bytes, hint) in [
            (
                KvCache::Fitting(4),
                needed(1) - 1,
                "(hint: give a smaller context with `-c N`",
            ),
            (
                KvCache::Tokens(512),
                needed(1) - 1,
                "(hint: give fewer tokens with `--kv-cache-tokens N`",
            ),
            (KvCache::Fitting(4), 1 << 20, "(hint: no context is small enough"),
        ] {
            let mut options = with(kv_cache);
            let refused = keep_within("demo", demo, &mut options, budget_bytes).expect_err("no room");
            let line = refused.line();
            assert!(
                line.contains("with a context of 512 tokens, and the memory budget is ")
                    && line.contains(hint),
                "{line}"
            );
        }
    }
}
