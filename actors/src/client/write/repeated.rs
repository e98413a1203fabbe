//! A key that is in one batch twice: the first item is put. The others get its result, or, if no
//! put may find its key (`IfExists::Fail`), an error that names both. Without this their error
//! would blame a put of another caller.

use super::super::find::shown;
use crate::error::{Error, ErrorKind, Result};
use hashbrown::HashMap;

/// Items that were refused because an earlier item of the same batch has their key: sets their
/// error to InvalidArgument with both positions. `at` holds the positions in the caller's batch.
/// Returns the index of the first item of such a key and that of a further one.
pub(super) fn name_repeated<T>(
    opened: &mut [Result<T>],
    items: &[(&[u8], u64)],
    at: &[usize],
) -> Vec<(usize, usize)> {
    let mut repeated = Vec::new();
    let refused = |r: &Result<T>| matches!(r, Err(e) if e.kind() == ErrorKind::NotReady);
    // The usual case: nothing was refused.
    if !opened.iter().any(refused) {
        return repeated;
    }
    let mut first: HashMap<&[u8], usize> = HashMap::new();
    for i in 0..opened.len().min(items.len()) {
        let key = items[i].0;
        if opened[i].is_ok() {
            first.entry(key).or_insert(i);
        } else if let Some(before) = first.get(key).filter(|_| refused(&opened[i])) {
            repeated.push((*before, i));
            let (first, second) = (at.get(*before).unwrap_or(before), at.get(i).unwrap_or(&i));
            opened[i] = Err(Error::invalid(format!(
                "key {} stands twice in this batch, at {first} and {second} (counted from 0): the \
                 first is put, this one is not",
                shown(key)
            )));
        }
    }
    repeated
}

#[cfg(test)]
mod tests {
    use super::name_repeated;
    use crate::error::{Error, ErrorKind, Result};

    #[test]
    fn only_what_an_earlier_item_of_the_batch_holds_up_is_called_repeated() {
        let wait = || Err(Error::not_ready("being written by another put"));
        let items: [(&[u8], u64); 4] = [(b"a", 1), (b"b", 1), (b"a", 1), (b"b", 1)];
        let mut opened: Vec<Result<()>> = vec![Ok(()), wait(), wait(), wait()];
        assert_eq!(name_repeated(&mut opened, &items, &[3, 5, 7, 9]), [(0, 2)]);
        assert_eq!(opened[1], wait(), "another put has it");
        let error = opened[2].clone().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.message().starts_with("key a stands twice in this batch, at 3 and 7 "),
            "{error}"
        );
        assert_eq!(opened[3], wait());
    }
}
