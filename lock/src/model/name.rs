//! A lock's name, its client's prefix, and the derived names of keys and channels.

use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, truncated};

/// A valid lock name: the key on the server, byte for byte.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct LockName(Arc<str>);

/// The longest name, in bytes. A longer name is most likely a mistake, and every wait would send
/// the name again.
pub(crate) const LONGEST_NAME: usize = 64 * 1024;

/// The prefix of the channels of latches.
const LATCH_CHANNEL: &str = "redisson_countdownlatch__channel__";

/// Whether a channel may be in another hash slot than its key: true only for latches with a brace
/// in the name. Then the key's node cannot publish to the channel's shard, only to all nodes.
/// Redisson cannot use such a latch in a cluster at all, so no sharded subscriber misses the
/// message.
pub(crate) fn is_in_other_hash_slot(channel: &str) -> bool {
    let braced = channel.strip_prefix(LATCH_CHANNEL).and_then(|braced| braced.strip_prefix('{'));
    braced.is_some_and(|name| name.contains('{'))
}

impl LockName {
    /// Checks a name. Returns [`Error::InvalidName`] if the name is empty or too long.
    pub(crate) fn parse(name: &str) -> Result<Self, Error> {
        let reason = if name.is_empty() {
            "it is empty".to_owned()
        } else if name.len() > LONGEST_NAME {
            format!("it is longer than {LONGEST_NAME} bytes")
        } else {
            return Ok(Self(Arc::from(name)));
        };
        Err(Error::InvalidName { name: truncated(name), reason })
    }

    /// Returns a placeholder for all names in a message.
    pub(crate) fn any() -> Self {
        Self(Arc::from("*"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name for messages, truncated if long.
    pub(crate) fn shown(&self) -> String {
        truncated(&self.0)
    }

    /// Whether the name has a `{`, which Redisson takes for braces around a hash tag. Of two names
    /// with the same channel or key, `x` and `{x}`, only `{x}` has braces.
    pub(crate) fn has_braces(&self) -> bool {
        self.0.contains('{')
    }

    /// Returns the second name with the same derived keys in Redisson's layout, if any: `{x}` for
    /// `x`, and `x` for `{x}`.
    fn twin(&self) -> Option<String> {
        if !self.has_braces() {
            return Some(format!("{{{}}}", self.0));
        }
        let inner = self.0.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        inner.filter(|inner| !inner.contains('{')).map(str::to_owned)
    }

    /// Returns the name, or [`Error::InvalidName`] for a name in braces which shares keys with the
    /// name inside, so nobody uses both names.
    pub(crate) fn without_outer_braces(self) -> Result<Self, Error> {
        let is_refused = self.has_braces() && self.twin().is_some();
        if is_refused { Err(self.shares_keys()) } else { Ok(self) }
    }

    /// Makes the error of a name that shares keys with the other of two names.
    fn shares_keys(&self) -> Error {
        let twin = truncated(&self.twin().unwrap_or_default());
        let reason = format!("it would share keys with {twin:?}: use one of the two names");
        Error::InvalidName { name: self.shown(), reason }
    }

    /// Returns the channel of the lock's releases, as named by Redisson. Like all names here, the
    /// channel's name is built on demand: a hundred thousand holds only need their channels at
    /// their ends.
    pub(crate) fn channel(&self) -> Arc<str> {
        Arc::from(self.channel_parts().concat())
    }

    /// Returns the parts of the channel's name.
    pub(crate) fn channel_parts(&self) -> [&str; 4] {
        self.parts("redisson_lock__channel")
    }

    /// Returns the channel of one waiter of a fair lock.
    pub(crate) fn channel_of(&self, waiter: impl fmt::Display) -> Arc<str> {
        Arc::from(self.with_prefix("redisson_lock__channel", format_args!(":{waiter}")))
    }

    /// Returns the channel of read-write locks.
    pub(crate) fn read_write_channel(&self) -> Arc<str> {
        self.prefixed("redisson_rwlock")
    }

    /// Returns the channel of semaphores.
    pub(crate) fn semaphore_channel(&self) -> Arc<str> {
        self.prefixed("redisson_sc")
    }

    /// Returns the channel of latches. Redisson ignores braces here, so the channel of a latch with
    /// braces in its name [is in another hash slot](is_in_other_hash_slot).
    pub(crate) fn latch_channel(&self) -> Arc<str> {
        Arc::from(format!("{LATCH_CHANNEL}{{{}}}", self.0))
    }

    /// Returns the key of the last fencing token.
    pub(crate) fn token(&self) -> Arc<str> {
        self.prefixed("redisson_lock_token")
    }

    /// Returns the key of a fair lock's queue.
    pub(crate) fn queue(&self) -> Arc<str> {
        self.prefixed("redisson_lock_queue")
    }

    /// Returns the key of the liveness deadlines of the waiters in [`queue`](Self::queue).
    pub(crate) fn queue_deadlines(&self) -> Arc<str> {
        self.prefixed("redisson_lock_timeout")
    }

    /// Returns the key of the leases of an expirable semaphore's permits.
    pub(crate) fn permit_leases(&self) -> Arc<str> {
        self.suffixed("timeout")
    }

    /// Returns the key of the server's reply to the last call of the request sequence `id`, or to
    /// the release of the permit `id`. With this key a copy counts once.
    pub(crate) fn request(&self, id: impl fmt::Display) -> Arc<str> {
        Arc::from(self.own("wheellock_request", format_args!(":{id}")))
    }

    /// Returns a key of one slot of the job of this name: its lock, or its record.
    pub(crate) fn job(&self, key: &str, slot: &str) -> String {
        self.own(&format!("wheellock_job_{key}"), format_args!(":{slot}"))
    }

    /// Returns the key of the last token of the job of this name.
    pub(crate) fn job_tokens(&self) -> Arc<str> {
        Arc::from(self.own("wheellock_job_token", format_args!("")))
    }

    /// Returns the key of the slots for which the job of this name ran last.
    pub(crate) fn job_runs(&self) -> Arc<str> {
        Arc::from(self.own("wheellock_job_runs", format_args!("")))
    }

    /// Returns the place where this client's threads wait for a lock without messages. Not a
    /// channel.
    pub(crate) fn polled(&self) -> Arc<str> {
        Arc::from(self.own("polled", format_args!("")))
    }

    /// Makes a key in this name's hash slot, unknown to Redisson: `prefix`, the name, and `more`.
    /// Keys of different names differ, whatever follows: a name without braces ends at its `}`, and
    /// any other name is preceded by its length.
    fn own(&self, prefix: &str, more: fmt::Arguments<'_>) -> String {
        let name = &*self.0;
        if name.contains(['{', '}']) {
            format!("{prefix}:{}:{name}{more}", name.len())
        } else {
            format!("{prefix}:{{{name}}}{more}")
        }
    }

    /// Makes a name in this name's hash slot, with a prefix. Redisson's `prefixName`: a name
    /// without braces is put in braces, so all keys of one lock share a hash slot in a cluster. As
    /// in Redisson, any `{` counts as braces.
    pub(crate) fn prefixed(&self, prefix: &str) -> Arc<str> {
        Arc::from(self.parts(prefix).concat())
    }

    /// Returns the parts of the name with a prefix, as [`prefixed`](Self::prefixed) joins the
    /// parts.
    fn parts<'a>(&'a self, prefix: &'a str) -> [&'a str; 4] {
        let (open, close) = self.braces();
        [prefix, open, &self.0, close]
    }

    /// Makes a name in this name's hash slot, with a prefix as in [`prefixed`](Self::prefixed), and
    /// a suffix.
    fn with_prefix(&self, prefix: &str, more: fmt::Arguments<'_>) -> String {
        /// Room for an owner or a permit's id, and the braces.
        const MORE: usize = 64;
        let mut text = String::with_capacity(prefix.len() + self.0.len() + MORE);
        for part in self.parts(prefix) {
            text.push_str(part);
        }
        // Writing to a string does not fail.
        text.write_fmt(more).ok();
        text
    }

    /// Returns the text between a prefix and this name, and the text after the name.
    fn braces(&self) -> (&'static str, &'static str) {
        if self.has_braces() { (":", "") } else { (":{", "}") }
    }

    /// Makes a name in this name's hash slot, with a suffix: Redisson's `suffixName`.
    pub(crate) fn suffixed(&self, suffix: &str) -> Arc<str> {
        let name = &*self.0;
        let parts =
            if self.has_braces() { ["", name, ":", suffix] } else { ["{", name, "}:", suffix] };
        Arc::from(parts.concat())
    }
}

/// The names last used by a client, by which the client refuses the second of two names with a
/// shared key. In Redisson's layout `x` and `{x}` share their queue, counter of tokens, and set of
/// leases.
///
/// There is no lock inside, so a fork never copies a half-changed value into a child.
pub(crate) struct SharedKeys {
    /// Hashes of derived keys, with [`LockName::has_braces`] as the lowest bit. Each key has one
    /// place, and replaces the earlier key there, which is forgotten.
    last: [AtomicU64; PLACES],
    hasher: RandomState,
}

/// The number of places for keys.
const PLACES: usize = 512;

impl Default for SharedKeys {
    fn default() -> Self {
        Self { last: [const { AtomicU64::new(0) }; PLACES], hasher: RandomState::new() }
    }
}

impl SharedKeys {
    /// Records and returns the name. Returns [`Error::InvalidName`] if the client has used another
    /// name with the same derived key.
    pub(crate) fn register(
        &self,
        name: LockName,
        derive: fn(&LockName) -> Arc<str>,
    ) -> Result<LockName, Error> {
        let hash = self.hasher.hash_one(derive(&name));
        let entry = (hash & !1) | u64::from(name.has_braces());
        // The upper half selects the place: all other bits distinguish two keys of one place.
        let place = usize::try_from(hash >> 32).ok().and_then(|hash| self.last.get(hash % PLACES));
        // Relaxed: a simultaneous first use of both names by two threads may go unnoticed.
        if let Some(place) = place
            && place.load(Ordering::Relaxed) != entry
            && place.swap(entry, Ordering::Relaxed) == entry ^ 1
        {
            place.store(entry ^ 1, Ordering::Relaxed);
            return Err(name.shares_keys());
        }
        Ok(name)
    }
}

impl fmt::Debug for SharedKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SharedKeys").finish_non_exhaustive()
    }
}

/// A client's prefix of every name. Names are only built here, so keys, channels and messages all
/// have the prefix.
#[derive(Clone)]
pub(crate) struct Prefix(Arc<str>);

impl Prefix {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(Arc::from(prefix))
    }

    /// Returns this prefix, followed by `more`.
    pub(crate) fn then(&self, more: &str) -> Self {
        Self(Arc::from(format!("{}{more}", self.0)))
    }

    /// Returns the lock's name for `name` under this prefix. Returns [`Error::InvalidName`] if
    /// `name` is empty or the result is too long.
    pub(crate) fn name(&self, name: &str) -> Result<LockName, Error> {
        if self.0.is_empty() {
            LockName::parse(name)
        } else if name.is_empty() {
            let reason = "the name after the prefix is empty".to_owned();
            Err(Error::InvalidName { name: truncated(&self.0), reason })
        } else {
            LockName::parse(&format!("{}{name}", self.0))
        }
    }
}

impl Prefix {
    /// Makes a pattern of Redis: this prefix with every special character escaped, then `pattern`.
    pub(crate) fn pattern(&self, pattern: &str) -> String {
        let mut text = String::with_capacity(self.0.len() + pattern.len());
        for sign in self.0.chars() {
            if matches!(sign, '*' | '?' | '[' | ']' | '\\' | '^') {
                text.push('\\');
            }
            text.push(sign);
        }
        text.push_str(pattern);
        text
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&truncated(&self.0), formatter)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown(), formatter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// All texts of one to `longest` signs, of those that could make two keys one.
    fn texts(longest: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut begin = 0;
        for _ in 0..longest {
            let end = all.len();
            for at in begin..end {
                all.extend(
                    "{}:12".chars().map(|sign| format!("{}{sign}", all[at])).collect::<Vec<_>>(),
                );
            }
            begin = end;
        }
        all.split_off(1)
    }

    #[test]
    fn no_two_names_and_slots_have_one_key_of_this_crates_own() {
        let slots = texts(3);
        let mut known = HashMap::new();
        for text in texts(4) {
            let name = LockName::parse(&text).unwrap();
            for slot in &slots {
                let pair = (text.clone(), slot.clone());
                if let Some(other) = known.insert(name.job("record", slot), pair.clone()) {
                    panic!("{pair:?} and {other:?} have one key");
                }
            }
            for key in [name.request("7"), name.job_tokens(), name.polled()] {
                let pair = (text.clone(), String::new());
                if let Some(other) = known.insert(key.to_string(), pair.clone()) {
                    panic!("{pair:?} and {other:?} have one key");
                }
            }
        }
    }

    #[test]
    fn second_name_of_a_key_is_refused_until_the_key_is_forgotten() {
        let keys = SharedKeys::default();
        let register = |name: &str| keys.register(LockName::parse(name).unwrap(), LockName::queue);
        assert!(register("{x}").is_ok() && register("{x}").is_ok());
        let error = register("x").unwrap_err();
        assert!(error.to_string().contains(r#""{x}""#), "{error}");
        assert!(register("x").is_err() && register("{x}").is_ok());
        // Another key replaces the key if both have one place. This is so for one key in 512, and
        // each client hashes otherwise: of many names, only the share is certain.
        let is_refused = |number: &u32| {
            let braced = format!("{{{number}}}");
            assert!(register(&braced).is_ok() && register(&format!("{braced}:y")).is_ok());
            register(&number.to_string()).is_err()
        };
        let refused = (0..100_000).filter(is_refused).count();
        assert!((99_000..100_000).contains(&refused), "{refused}");
        // However many names there are, none is refused without its other.
        assert!((0..100_000).all(|number| register(&format!("name-{number}")).is_ok()));
    }

    #[test]
    fn the_channel_carries_the_hash_tag_as_redisson_writes_it() {
        let channel = |name: &str| LockName::parse(name).unwrap().channel().to_string();
        assert_eq!(channel("a"), "redisson_lock__channel:{a}");
        assert_eq!(channel("a{b}"), "redisson_lock__channel:a{b}");
        assert_eq!(channel("a{b"), "redisson_lock__channel:a{b");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
    }

    #[test]
    fn prefix_precedes_the_name_without_separate_braces() {
        let prefix = Prefix::new("app:").then("orders:");
        let names = |name: &str| {
            let name = prefix.name(name).unwrap();
            [name.as_str().to_owned(), name.channel().to_string(), name.permit_leases().to_string()]
        };
        assert_eq!(
            names("7"),
            ["app:orders:7", "redisson_lock__channel:{app:orders:7}", "{app:orders:7}:timeout"]
        );
        assert_eq!(
            names("{7}:x"),
            [
                "app:orders:{7}:x",
                "redisson_lock__channel:app:orders:{7}:x",
                "app:orders:{7}:x:timeout"
            ]
        );
    }

    #[test]
    fn only_the_channel_of_a_latch_with_braces_is_in_other_slot() {
        for (text, apart) in [("a", false), ("a{b}", true), ("{user}:42", true)] {
            let name = LockName::parse(text).unwrap();
            assert_eq!(is_in_other_hash_slot(&name.latch_channel()), apart, "{text}");
            assert!(
                !is_in_other_hash_slot(&name.channel())
                    && !is_in_other_hash_slot(&name.semaphore_channel())
            );
        }
    }

    #[test]
    fn a_long_name_is_cut_short_in_messages() {
        let error = LockName::parse(&"x".repeat(LONGEST_NAME + 1)).unwrap_err();
        assert!(error.to_string().len() < 300, "{error}");
    }
}
