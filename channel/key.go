package channel

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Key derives 32 bytes from the secret of the job, with which programs can authenticate
// their own connections. They are the same at all ranks and different for each purpose:
// HMAC-SHA256 over purpose (RFC 2104), which reveals nothing about the secret or about
// other keys. Key returns nil if the job is insecure, that is, has no secret.
func (n *Node) Key(purpose string) []byte {
	secret := n.job.Secret()
	if secret == nil {
		return nil
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("sluice key\x00" + purpose))
	return h.Sum(nil)
}
