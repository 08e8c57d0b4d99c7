package roce

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What only a QP with a gap needs is not in each: all that a context may have fit into little
// memory.
func TestQPSize(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(qp{})*maxQP, uintptr(64<<20), "a QP has %d bytes", unsafe.Sizeof(qp{}))
}
