package reach

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Where netlink is refused, the interfaces are the same, with their first address by IPv4.
func TestAsked(t *testing.T) {
	list, err := listed()
	require.NoError(t, err)
	asked := asked()
	require.Len(t, asked, len(list))
	for i, n := range list {
		a := asked[i]
		require.Equal(t, n.Name, a.Name)
		require.Equal(t, n.Index, a.Index)
		require.Equal(t, n.MTU, a.MTU)
		require.Equal(t, n.Loop, a.Loop)
		require.Subset(t, n.Addrs, a.Addrs)
		four := 0
		for _, ip := range n.Addrs {
			switch {
			case ip.Is6():
				require.Contains(t, a.Addrs, ip)
			case four == 0:
				require.Contains(t, a.Addrs, ip)
				four++
			}
		}
	}
}
