//! Checks the history of accepted writes, independently of the rules of the register.

use crate::register::Written;

/// What is wrong with the writes of one number, in the order in which they were accepted.
pub(crate) fn faults_of(written: &[Written]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut before = Written { token: 0, holder: 0, old: 0, new: 0 };
    for (place, now) in written.iter().enumerate() {
        if now.token < before.token {
            faults.push(format!("write {place} is stale: {now:?} after {before:?}"));
        }
        if now.token == before.token && now.holder != before.holder {
            faults.push(format!(
                "write {place} has a token of another hold: {now:?} after {before:?}"
            ));
        }
        if now.old != before.new {
            faults.push(format!("write {place} loses an increment: {now:?} after {before:?}"));
        }
        if now.new != now.old + 1 {
            faults.push(format!("write {place} is no increment: {now:?}"));
        }
        before = *now;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rows: &[(u64, u64, u64)]) -> Vec<Written> {
        let row = |&(token, holder, old)| Written { token, holder, old, new: old + 1 };
        rows.iter().map(row).collect()
    }

    fn fault(rows: &[(u64, u64, u64)]) -> String {
        faults_of(&written(rows)).join("; ")
    }

    #[test]
    fn increments_under_growing_tokens_are_right() {
        assert_eq!(fault(&[(5, 1, 0), (5, 1, 1), (6, 2, 2), (9, 3, 3)]), "");
    }

    #[test]
    fn a_stale_write_is_found() {
        assert!(fault(&[(6, 2, 0), (5, 1, 1)]).contains("is stale"));
    }

    #[test]
    fn a_token_of_two_holds_is_found() {
        assert!(fault(&[(6, 2, 0), (6, 1, 1)]).contains("token of another hold"));
    }

    #[test]
    fn a_lost_increment_is_found() {
        assert!(fault(&[(5, 1, 0), (6, 2, 0)]).contains("loses an increment"));
    }
}
