//! Addresses as text: what is read is written the same way again.

use nkv_transport::wire::Address;

pub fn run(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let Ok(address) = text.parse::<Address>() else {
        return false;
    };
    assert_eq!(address.to_string().parse(), Ok(address.clone()), "{text:?}");
    assert!(text.ends_with(&address.bare()), "{text:?}");
    true
}
