//! The hash slot of a key in a cluster: a checksum of the key, or of its hash tag in braces.

/// The number of hash slots of a cluster.
pub(crate) const HASH_SLOTS: u16 = 16_384;

/// Returns the hash slot of a key or of a channel.
pub(crate) fn hash_slot_of(key: &str) -> u16 {
    let key = key.as_bytes();
    checksum(tag(key).unwrap_or(key)) % HASH_SLOTS
}

/// Returns whether all names derived from `key` are in the hash slot of `key`.
///
/// Returns `false` if the key has braces without a hash tag: a derived name, with braces around the
/// key or a prefix, then has another tag. Keys of this form are refused for every operation.
/// Otherwise a lock could be acquired and not released. The form decides, because hash slots may
/// agree by chance.
pub(crate) fn shares_hash_slot_with_derived(key: &str) -> bool {
    tag(key.as_bytes()).is_some() || !key.contains(['{', '}'])
}

/// Returns the hash tag: the text between the first `{` and the next `}`. `None` without such a
/// text, or if the text is empty.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let opened = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(opened + 1..)?;
    let closed = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..closed).filter(|tag| !tag.is_empty())
}

/// Returns the CRC-16/XMODEM of `bytes`.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        let [high, _] = sum.to_be_bytes();
        (sum << 8) ^ TABLE[usize::from(high ^ byte)]
    })
}

/// The contribution of each byte to the checksum.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut sum = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = sum;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(checksum(b"123456789"), 0x31C3);
        assert_eq!(checksum(b""), 0);
    }

    #[test]
    fn slots_are_those_of_a_server() {
        // Asked with CLUSTER KEYSLOT.
        for (key, slot) in [
            ("a", 15_495),
            ("a{b}", 3300),
            ("a{b", 13_340),
            ("a{}b", 13_694),
            ("redisson_countdownlatch__channel__{a{b}}", 13_340),
            ("redisson_lock__channel:{a}", 15_495),
            ("foo{{bar}}zap", hash_slot_of("{bar")),
            ("foo{bar}{zap}", hash_slot_of("bar")),
            ("{}", hash_slot_of("{}")),
        ] {
            assert_eq!(hash_slot_of(key), slot, "{key}");
        }
        assert!((0..1000).all(|number| hash_slot_of(&number.to_string()) < HASH_SLOTS));
    }

    #[test]
    fn derived_names_share_the_slot_unless_braces_hold_no_tag() {
        use crate::model::name::LockName;
        for text in ["a", "orders:42", "a{b}", "{user}:42", "}a{b}", "{a}{", "{{b}}", "{a}b}"] {
            assert!(shares_hash_slot_with_derived(text), "{text}");
            let name = LockName::parse(text).unwrap();
            let of_redisson = [name.channel(), name.token(), name.permit_leases()];
            let own = [name.request("x"), name.job_tokens(), name.job("record", "{b}").into()];
            for made in of_redisson.iter().chain(&own) {
                assert_eq!(hash_slot_of(made), hash_slot_of(text), "{made}");
            }
        }
        for text in ["a{b", "a}b", "a{}b", "}", "{", "}{", "{}{a}"] {
            assert!(!shares_hash_slot_with_derived(text), "{text}");
        }
    }
}
