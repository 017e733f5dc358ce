// Command nnp prints the effective user of its process. As a set-uid program it shows whether
// the container may gain privileges.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Printf("Effective uid: %d\n", os.Geteuid())
}
