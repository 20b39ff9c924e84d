//! [`ApiKeys`] checks the keys of clients; [`Tenant`] and [`Peer`] identify the sender of a request.
//!
//! Invariant: comparing a key takes the same time wherever it first differs, and all keys are compared.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
};

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The keys that clients may use.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Takes a list of keys; empty ones are left out.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        let trimmed = keys.into_iter().map(|key| key.trim().to_owned());
        Self(trimmed.filter(|key| !key.is_empty()).collect())
    }

    /// Reads one key a line; empty lines and those that begin with `#` are left out.
    pub fn from_lines(text: &str) -> Self {
        Self::new(
            text.lines()
                .filter(|line| !line.trim_start().starts_with('#'))
                .map(str::to_owned),
        )
    }

    /// Adds the keys of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Whether anybody may call.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn admit(&self, offered: &str) -> bool {
        let is_one = |key: &String| key.as_bytes().ct_eq(offered.as_bytes());
        self.0
            .iter()
            .map(is_one)
            .fold(Choice::from(0), |any, one| any | one)
            .into()
    }
}

/// Identifies the owner of a request for the prefix cache. No tenant finds prefixes of another, or the time of
/// an answer would tell what others ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tenant {
    has_key: bool,
    /// The beginning of the SHA-256 of its key: the same in every process.
    digest: [u8; 16],
}

/// Identifies the machine of a connection: its IPv4 address or the network part of its IPv6 address; empty for a UNIX socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Peer(Option<IpAddr>);

impl Peer {
    /// Identifies the machine of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(Some(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => v4.into(),
                None => (v6.to_bits() >> 64 << 64).to_be_bytes().into(),
            },
        }))
    }
}

impl Tenant {
    /// Returns a number for the tenant on a machine, by which shared resources are divided fairly.
    pub(crate) fn client(self, peer: Peer) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.digest, peer).hash(&mut hasher);
        hasher.finish()
    }

    /// The tenant that a key stands for.
    pub(crate) fn of_key(key: &str) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&Sha256::digest(key.as_bytes())[..16]);
        Self {
            has_key: true,
            digest,
        }
    }

    /// Returns the owner mark in this tenant's files; empty on a server without keys.
    pub(crate) fn owner(self) -> String {
        if self.has_key {
            format!("{:032x}", u128::from_be_bytes(self.digest))
        } else {
            String::new()
        }
    }

    /// Returns the salt that separates a request's cached pages from those of other tenants and salts. It is the same in every process,
    /// since pages may outlive this one.
    pub(crate) fn cache_salt(self, salt: Option<&str>) -> u64 {
        if !self.has_key && salt.is_none() {
            return 0;
        }
        let mut hasher = Sha256::new_with_prefix([u8::from(self.has_key), u8::from(salt.is_some())]);
        hasher.update(self.digest);
        hasher.update(salt.unwrap_or_default());
        let hash = hasher.finalize();
        u64::from_le_bytes(*hash.first_chunk().expect("a SHA-256 has 32 bytes"))
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({} hidden)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_an_address_or_a_network() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::2:3"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        let (one, other) = (Tenant::of_key("a"), Tenant::of_key("b"));
        let here = peer("127.0.0.1");
        assert_eq!(one.client(here), one.client(here));
        assert_ne!(one.client(here), other.client(here));
        assert_ne!(one.client(here), one.client(Peer::default()));
    }

    #[test]
    fn keys_come_from_lines_and_only_they_are_admitted() {
        let keys = ApiKeys::from_lines("# the team\nalpha\n\n beta \n");
        assert!(keys.admit("alpha") && keys.admit("beta"));
        assert!(!keys.admit("gamma") && !keys.admit("alph") && !keys.admit("") && !keys.admit("# the team"));
        assert!(ApiKeys::from_lines("\n# nothing\n").is_open());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 hidden)");
    }

    #[test]
    fn a_cache_belongs_to_a_key_and_a_salt() {
        let salts = [
            Tenant::default().cache_salt(None),
            Tenant::default().cache_salt(Some("a")),
            Tenant::of_key("k").cache_salt(None),
            Tenant::of_key("k").cache_salt(Some("a")),
            Tenant::of_key("k").cache_salt(Some("b")),
            Tenant::of_key("l").cache_salt(Some("a")),
        ];
        let distinct: std::collections::BTreeSet<u64> = salts.into_iter().collect();
        assert_eq!(distinct.len(), salts.len());
        assert_eq!(salts[0], 0, "an open server has one cache");
        assert_eq!(Tenant::of_key("k").cache_salt(Some("a")), salts[3]);
    }
}
