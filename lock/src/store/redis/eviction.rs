//! Whether the server may delete locks to make room: what it says of its eviction policy.

use super::command::Command;
use super::connection::{Broken, Connection, Limit};
use crate::error::shortened;
use crate::value::Value;

/// The policy of a server that may evict locks. `None` if it never evicts, or does not say: not everybody may ask for
/// `INFO`, and not every server knows the field.
pub(super) fn ask(
    connection: &mut Connection,
    limit: &mut Limit,
) -> Result<Option<String>, Broken> {
    let packed = Command::of(&["INFO", "memory"]);
    Ok(match connection.call(&packed, limit)? {
        Value::Text(info) => evicting_policy(&info),
        _ => None,
    })
}

fn evicting_policy(info: &str) -> Option<String> {
    let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?.trim();
    (policy != "noeviction").then(|| shortened(policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_but_noeviction_can_delete_a_lock() {
        let info = |policy: &str| {
            format!("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{policy}\r\nallocator:libc\r\n")
        };
        assert_eq!(evicting_policy(&info("noeviction")), None);
        for policy in ["allkeys-lru", "volatile-ttl", "something-new"] {
            assert_eq!(evicting_policy(&info(policy)).as_deref(), Some(policy));
        }
    }

    #[test]
    fn a_server_that_does_not_say_is_not_accused() {
        assert_eq!(evicting_policy(""), None);
        assert_eq!(evicting_policy("maxmemory:0\r\n"), None);
    }
}
